"""Unit tests of the dialects: what a name and an amount mean."""
