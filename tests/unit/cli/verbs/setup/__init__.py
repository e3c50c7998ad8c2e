"""Unit tests of `cli/verbs/setup`."""
