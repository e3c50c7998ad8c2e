"""Unit tests of `core/intake`."""
