"""Verbs that show what is and what was."""
