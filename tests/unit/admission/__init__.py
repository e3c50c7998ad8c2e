"""Unit tests of the admission service. Those of its rules are in tests/unit/core."""
