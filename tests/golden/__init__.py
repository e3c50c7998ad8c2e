"""Golden tests: later builds can read what earlier ones wrote."""
