"""Contract tests: one suite runs against each implementation of an interface."""
