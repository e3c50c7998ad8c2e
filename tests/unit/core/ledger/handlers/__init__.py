"""Unit tests of what the fold makes of events, by concern."""
