"""Contract tests: one suite runs against every implementation of a port."""
