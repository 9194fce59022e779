"""The rank's side of Ray: runs one attempt and reports to the sink."""
