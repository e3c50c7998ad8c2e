"""Unit tests of the binder."""
