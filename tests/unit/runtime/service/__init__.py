"""Unit tests of what all services share: start, stop, health, limits and TLS."""
