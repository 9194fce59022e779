"""One attempt of one rank: what it is to train, the loop of its steps, and what is observed of it."""
