"""Verbs that predict what would happen, and change nothing."""
