"""Unit tests of the parts of every process."""
