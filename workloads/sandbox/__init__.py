"""The child process that imports a user's code, builds the model and traces it."""
