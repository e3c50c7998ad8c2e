"""The common parts of all services: options, health, loops, and the session on the ledger."""
