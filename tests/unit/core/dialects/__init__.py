"""Unit tests of `core/dialects`."""
