"""The documented schema of every answer, one module for each resource, built from rows of the study database.

Times are seconds since the epoch (UTC). JSON has no NaN or infinity, so such a number is null.
"""
