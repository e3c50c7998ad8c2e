"""Simulation of the whole system from one seed: virtual time, an in-memory ledger, faults and
checks."""
