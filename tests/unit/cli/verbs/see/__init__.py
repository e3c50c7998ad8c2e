"""Unit tests of `cli/verbs/see`."""
