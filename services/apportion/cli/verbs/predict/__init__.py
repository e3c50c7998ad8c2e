"""Verbs that work out what would happen, and change nothing."""
