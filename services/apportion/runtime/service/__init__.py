"""The life of a service: its options, its health, its loops, its session on the ledger."""
