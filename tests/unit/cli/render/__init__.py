"""Unit tests of how the CLI prints tables, times and charts."""
