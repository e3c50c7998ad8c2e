"""What a node's agent may tell the ledger, and what is not believed of it.

Agents do not write the ledger: each asks an intake to, and the intake judges by these pure
functions over the state. Invariant: whatever an agent sends, no subject, id or fence but those of
its own node's reports can come of it."""
