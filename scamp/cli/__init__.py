"""The command line: commands that ask a service, and what they share with those of scamp-server."""
