"""Unit tests of `core/explain/text`."""
