"""Tidy tests: the repository obeys its own rules."""
