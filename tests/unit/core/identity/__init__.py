"""Unit tests of `core/identity`."""
