"""Who is let in, and what they may do."""
