"""Unit tests of `cli/verbs/act`."""
