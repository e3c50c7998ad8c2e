"""Unit tests of `cli/render`."""
