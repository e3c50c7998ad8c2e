"""Attacks with one stolen identity. Each must fail, and must succeed once its guard is removed."""
