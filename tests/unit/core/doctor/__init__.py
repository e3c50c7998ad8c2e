"""Checks of an installation, from collected facts."""
