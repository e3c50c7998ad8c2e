"""Unit tests of `core/placement/index`."""
