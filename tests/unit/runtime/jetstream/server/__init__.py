"""Unit tests of the NATS server's users and monitoring."""
