"""The ledger as services use it, independent of its storage: interface, reading and writing."""
