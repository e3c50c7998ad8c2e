"""Unit tests of `core/grants`."""
