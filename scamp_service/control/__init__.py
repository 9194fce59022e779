"""Decides what happens next and applies it: the controller and its pure decisions."""
