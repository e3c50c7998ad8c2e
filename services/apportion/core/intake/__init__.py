"""Check what agents report, because agents cannot write to the ledger themselves.

Invariant: whatever an agent sends, only reports of its own node can result, with no other subject,
id or fence."""
