"""Unit tests of reading manifest files."""
