"""Unit tests of `cli/pods`."""
