"""Contract tests of the ledger, run against the in-memory ledger and the ledger on nats-server."""
