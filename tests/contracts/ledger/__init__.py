"""Contract tests of the ledger, run against the in-memory ledger and the one on nats-server."""
