"""The ledger on NATS JetStream: the only NATS client, and the modules that build on it."""
