"""Tests of the gateway over HTTP, with real services on a real nats-server."""
