"""What the core makes of DRA."""
