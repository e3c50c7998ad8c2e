"""Explanations for users: refusals and placements as text, and the state as API answers."""
