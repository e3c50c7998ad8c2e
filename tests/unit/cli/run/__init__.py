"""Unit tests of `cli/run`."""
