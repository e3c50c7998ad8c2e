"""The scheduler's own parts, without a ledger."""
