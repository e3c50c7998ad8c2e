"""Unit tests, without a server, of the code that all services share."""
