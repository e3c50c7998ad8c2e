"""Unit tests of the NATS server's users and of its monitoring port."""
