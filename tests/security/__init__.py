"""Attacks by the owner of one stolen identity, each of which succeeds once its guard is removed."""
