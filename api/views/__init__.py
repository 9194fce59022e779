"""The documented shape of every answer, a module for each resource, built from the rows of the study database.

Times are seconds since the epoch (UTC). JSON has no NaN and no infinity: such a number is null.
"""
