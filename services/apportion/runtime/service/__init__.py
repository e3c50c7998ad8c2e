"""The parts of every service: options, health, loops, and its session on the ledger."""
