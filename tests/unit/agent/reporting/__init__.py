"""Unit tests of what an agent reports and reads."""
