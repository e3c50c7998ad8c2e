"""Tests that run CLI verbs as processes, with real services on a real nats-server."""
