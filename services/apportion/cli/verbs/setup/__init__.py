"""Verbs for the installation: users, tokens, the shell and the manual."""
