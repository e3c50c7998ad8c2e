"""Explain to users why pods are placed or refused, and convert the state into answers."""
