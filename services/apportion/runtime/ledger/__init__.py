"""The ledger as services see it, whatever carries it: the contract, its readers and writers."""
