"""The ledger's server where Apportion runs it: its process, users and monitoring."""
