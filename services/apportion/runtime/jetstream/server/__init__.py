"""The ledger's server where it is ours: its process, its users, and what it says of itself."""
