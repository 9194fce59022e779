"""A user's own files: found, zipped and checked, never imported or run."""
