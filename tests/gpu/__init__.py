"""Tests on a machine with a real GPU."""
