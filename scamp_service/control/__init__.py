"""The controller, which decides what happens next and applies it, and its pure decisions."""
