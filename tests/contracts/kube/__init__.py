"""One suite over the API server in memory and a real one."""
