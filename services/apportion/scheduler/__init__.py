"""The scheduler: folds the ledger, decides where pods go, and appends decisions.

`cycle` is the loop that makes fenced, chained drafts of the decisions of core's engine. The
scheduler connects only to the ledger. If the scheduler dies, its restart or another replica folds
the ledger and continues. Decisions that were not appended are made again.

Invariant: a scheduler decides only on a state that includes its own last decision."""
