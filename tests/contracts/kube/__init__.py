"""Contract tests of the Kubernetes API, run against the in-memory API server and a real one."""
