"""Unit tests of `core/placement`."""
