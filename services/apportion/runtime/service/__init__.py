"""The life of a service: options, health, loops, and its session on the ledger."""
