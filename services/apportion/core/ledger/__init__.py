"""The state that the ledger folds to, and the one function that changes it."""
