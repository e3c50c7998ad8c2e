"""One suite against the in-memory API server and a real one."""
