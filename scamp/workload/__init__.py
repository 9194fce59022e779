"""The protocol of a user's file, and all that it offers there. All but ``trial`` needs torch."""
