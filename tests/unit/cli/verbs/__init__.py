"""Unit tests of `cli/verbs`."""
