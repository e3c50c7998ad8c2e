"""Attacks by the holder of one identity; each succeeds when its guard is removed."""
