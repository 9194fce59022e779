"""Runs studies in virtual time on clusters that nobody need have, with the controller and decisions of real ones."""
