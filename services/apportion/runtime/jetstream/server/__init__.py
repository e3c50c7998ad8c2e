"""The ledger's server where we run it: its process, users and monitoring."""
