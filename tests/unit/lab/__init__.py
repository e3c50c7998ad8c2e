"""Unit tests of the laboratory."""
