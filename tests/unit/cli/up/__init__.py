"""Unit tests of `cli/up`."""
