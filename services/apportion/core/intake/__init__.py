"""Check the reports of agents before they are appended, as agents cannot write to the ledger.

Invariant: what an agent sends can only result in reports about its own node. The intake alone sets
their subject, id and fence."""
