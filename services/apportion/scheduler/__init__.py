"""The scheduler: folds the ledger, decides where pods go, and appends decisions.

`cycle` runs the engine of `core` in a loop, and fences and chains its decisions. The scheduler
connects only to the ledger. If the scheduler dies, its restart or another replica folds the ledger
and makes the decisions that were not appended.

Invariant: a scheduler decides only on a state that includes its own last decision."""
