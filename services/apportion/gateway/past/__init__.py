"""The past: states of past revisions, and an index of allocations and events.

It runs in a process of its own (`gateway.past_process`), so that requests about the past do not
slow those about now. All of its data is derived from the ledger and its archives, and can be
deleted."""
