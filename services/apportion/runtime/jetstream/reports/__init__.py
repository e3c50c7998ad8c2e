"""Reports on what was granted and used, read from the ledger and its snapshots."""
