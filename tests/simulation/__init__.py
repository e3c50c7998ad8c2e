"""The whole system from one integer: virtual time, a ledger in memory, faults, checks."""
