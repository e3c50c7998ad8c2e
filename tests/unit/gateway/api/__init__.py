"""Unit tests of the read API."""
