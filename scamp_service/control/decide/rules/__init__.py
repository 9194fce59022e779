"""Rules that several steps of a decision share: retries, limits, patience, growth, and how an attempt ends."""
