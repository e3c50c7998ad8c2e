"""Unit tests of the events: which are accepted."""
