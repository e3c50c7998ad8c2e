"""Unit tests of `core/devices`."""
