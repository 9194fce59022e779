"""How well gangs are packed: studies whose costs come from the estimators and the planner, in virtual time."""
