"""Unit tests of the frame that all services run in: start, stop, health, limits and TLS."""
