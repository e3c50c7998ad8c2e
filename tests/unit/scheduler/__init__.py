"""Unit tests of the scheduler process."""
