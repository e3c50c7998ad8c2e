"""The past: states of past revisions, and an index of allocations and events.

A process of its own (`gateway.past_process`) answers about the past, so that such requests do not
slow those about the current state. All of its data is derived from the ledger and its archives, and
can be deleted."""
