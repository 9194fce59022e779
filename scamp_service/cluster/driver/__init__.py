"""The controller's side of Ray: starts, watches and ends ranks and the sink."""
