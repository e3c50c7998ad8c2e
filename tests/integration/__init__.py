"""Integration tests: real processes on a real nats-server."""
