"""Unit tests of `core/placement/limits`."""
