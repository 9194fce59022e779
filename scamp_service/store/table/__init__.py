"""The table of a study's trials: in which order, and which of them. Pure: ``trial_table`` reads the columns."""
