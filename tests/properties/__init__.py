"""Property tests: a rule holds for every input."""
