"""Verbs to set up an installation: users, tokens, the shell and the manual."""
