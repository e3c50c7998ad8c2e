"""Unit tests of the callout."""
