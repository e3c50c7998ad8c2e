"""Unit tests of `cli/verbs/predict`."""
