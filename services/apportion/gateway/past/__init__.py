"""The past: states of past revisions, and an index of allocations and events.

A separate process (`gateway.past_process`) answers requests about past states, so that they do not
slow down requests about the current state. All of its data is derived from the ledger and its
archives, and can be deleted."""
