"""What the agent reports to the ledger, by way of an intake, and what it reads of its nodes."""
