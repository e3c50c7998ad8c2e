"""The ledger's promises against a real nats-server with a real store."""
