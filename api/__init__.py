"""HTTP, server-sent events and the dashboard. Reads and writes the study database; knows no Ray."""
