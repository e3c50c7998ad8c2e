"""Unit tests of the fold's handlers, by concern."""
