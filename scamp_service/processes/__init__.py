"""The processes of a running service: the supervisor and the controller process."""
