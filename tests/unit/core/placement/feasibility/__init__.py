"""Unit tests of `core/placement/feasibility`."""
