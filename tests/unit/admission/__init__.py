"""Unit tests of the admission service; those of its rules are in tests/unit/core."""
