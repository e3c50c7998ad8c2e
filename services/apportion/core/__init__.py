"""Fold and decide, and nothing else.

Pure and synchronous: no I/O, no clock, no randomness, no logging. The same log gives the same state
and the same decision on any machine."""
