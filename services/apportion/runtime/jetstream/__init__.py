"""Implements the ledger on NATS JetStream, with our only NATS client."""
