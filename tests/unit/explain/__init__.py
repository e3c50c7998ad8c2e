"""Unit tests of the words."""
