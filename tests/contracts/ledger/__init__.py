"""One suite against the in-memory ledger and the one on nats-server."""
