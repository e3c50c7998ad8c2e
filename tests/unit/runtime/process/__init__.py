"""Unit tests of the code that every process uses."""
