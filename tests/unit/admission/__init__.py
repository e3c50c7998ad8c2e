"""Unit tests of the admission service. The tests of its rules are in tests/unit/core."""
