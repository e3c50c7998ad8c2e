"""Unit tests of `core/dra`."""
