"""Unit tests of `core/explain`."""
