"""Unit tests of the scheduler service. The tests of its decisions are in tests/unit/core."""
