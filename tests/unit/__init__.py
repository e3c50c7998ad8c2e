"""Unit tests: each checks one rule."""
