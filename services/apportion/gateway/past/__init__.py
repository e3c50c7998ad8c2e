"""The past: states of past revisions, and an index of allocations and events.

The past runs in a process of its own (`gateway.past_process`), so that its requests do not slow
requests about the current state. All of its data is derived from the ledger and its archives, and
can be deleted."""
