"""Unit tests of `core/placement/queueing`."""
