"""Judge what a node's agent asks to have appended to the ledger.

Agents cannot write to the ledger: they send events to an intake, which judges them by these pure
functions over the state. Invariant: whatever an agent sends, only reports of its own node can
result, with no other subject, id or fence."""
