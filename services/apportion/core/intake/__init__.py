"""Check the reports of agents before they are appended, as agents cannot write to the ledger.

Invariant: whatever an agent sends, it only results in reports about its own node. Their subject, id
and fence are never the agent's choice."""
