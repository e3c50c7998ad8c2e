"""Check agents' reports before they are appended, because agents cannot write to the ledger.

Invariant: whatever an agent sends, it only results in reports about its own node, with no other
subject, id or fence."""
