"""One suite over the ledger in memory and the one on nats-server."""
