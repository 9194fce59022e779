"""The input of a user: the study's specification and the user's own files."""
