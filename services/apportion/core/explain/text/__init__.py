"""Sentences and names for users, made from answers, refusals and events."""
