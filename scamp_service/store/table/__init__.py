"""The table of a study's trials: in which order, and which of them. Pure: ``store.reads`` reads the columns."""
