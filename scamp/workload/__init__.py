"""What a user's file is written with: ``protocol``, and what it offers. All but ``trial`` needs torch."""
