"""Unit tests of our NATS JetStream client and of the server that we run."""
