"""The service: studies, trials, the study database, search, the controller, Ray gangs, the CLI and the SDK."""
