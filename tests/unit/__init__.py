"""Unit tests. Each test checks one rule."""
