"""Tests that check the repository against its own rules."""
