"""Verbs that show the present and the past."""
