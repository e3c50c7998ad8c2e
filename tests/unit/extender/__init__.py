"""Unit tests of the extender."""
