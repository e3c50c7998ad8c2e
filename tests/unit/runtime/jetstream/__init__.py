"""Unit tests of our NATS JetStream client and of how we run its server."""
