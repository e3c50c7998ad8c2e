"""Attacks by whoever holds one identity; each works where its guard is taken out."""
