"""Unit tests of `core/reports`."""
