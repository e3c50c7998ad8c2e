"""What was: states of past revisions, and an index of who held what and what happened to whom.

It lives in a process of its own, which the gateway starts (`gateway.past_process`): what a look
into the past costs is never taken from the present. Everything in here is derived from the ledger
and its archives, and can be thrown away."""
