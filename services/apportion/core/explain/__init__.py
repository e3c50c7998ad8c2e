"""Explanations for users: why pods are placed or refused, and the state as answers."""
