"""The ledger on NATS JetStream: the only client, and all that is built on it."""
