"""Contract tests: one suite over every implementation of a port."""
