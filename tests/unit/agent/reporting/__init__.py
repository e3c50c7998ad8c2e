"""Unit tests of the events that an agent appends to the ledger and of the state that it folds from
the ledger."""
