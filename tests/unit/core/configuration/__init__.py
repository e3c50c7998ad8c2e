"""Unit tests of `core/configuration`."""
