"""Runs a nats-server for the ledger: its process, users and monitoring."""
