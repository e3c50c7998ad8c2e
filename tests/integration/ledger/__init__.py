"""Tests of the ledger's guarantees against a real nats-server with a real store."""
