"""Unit tests of the one configuration document."""
