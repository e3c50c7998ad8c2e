"""Unit tests of `core/placement/pricing`."""
