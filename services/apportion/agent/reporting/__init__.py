"""The agent's reports to the ledger through an intake, and its view of its nodes."""
