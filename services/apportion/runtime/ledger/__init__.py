"""The ledger as services see it, whatever stores it: contract, reading, writing."""
