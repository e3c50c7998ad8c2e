"""The ledger for services, independent of its storage: contract, reading, writing."""
