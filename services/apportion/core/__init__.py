"""The pure core of Apportion: folds the ledger's events into a state, and decides placements.

Invariant: the code is synchronous, and uses no I/O, clock, randomness or logging. The same ledger
gives the same state and the same decisions on any machine."""
