"""Who may do what: users, their roles in projects, their tokens and passwords."""
