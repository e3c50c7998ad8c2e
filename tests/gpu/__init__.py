"""GPU tests: results agree with a real GPU."""
