"""Checks of an installation, from gathered facts."""
