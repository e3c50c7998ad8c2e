"""Unit tests of `core/placement/affinity`."""
