"""The nats-server of the ledger when Apportion runs it: its process, users and monitoring."""
