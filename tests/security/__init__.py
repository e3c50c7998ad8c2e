"""Attacks by the owner of one stolen identity. Each attack is also made without its guard, where it
must succeed."""
