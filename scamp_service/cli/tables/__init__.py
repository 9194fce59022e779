"""Tables and drawings of the commands, for a terminal."""
