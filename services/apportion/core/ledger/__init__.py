"""The state that results from the ledger's events, and the one function that changes it."""
