"""The pure part of Apportion: fold events and decide.

Invariant: synchronous, without I/O, clock, randomness or logging. The same log gives the same state
and the same decisions on any machine."""
