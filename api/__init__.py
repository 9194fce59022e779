"""HTTP API, server-sent events and dashboard. They read and write the study database, and know nothing of Ray."""
