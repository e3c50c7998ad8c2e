"""Unit tests of `core/placement/assign`."""
