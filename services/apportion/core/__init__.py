"""The pure core of Apportion, which folds events into a state and decides.

Invariant: synchronous, without I/O, clock, randomness or logging. The same log gives the same state
and the same decisions on any machine."""
