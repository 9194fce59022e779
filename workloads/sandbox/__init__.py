"""The trace process: a child process that imports a user's code, builds the model and traces it."""
