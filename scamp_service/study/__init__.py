"""What a user submits: the study's specification and the user's own files."""
