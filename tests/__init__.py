"""The tests, one folder per intent."""
