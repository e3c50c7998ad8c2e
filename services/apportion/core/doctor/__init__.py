"""What is wrong with an installation, and what to do: `apportion doctor` and the gateway's page.

    gathered facts ──► one function for each check ──► state, words, fix

A new check is one function and its row in `checks.CHECKS`. Who gathers the facts, over NATS, from
a fold or from an API server, is not known here. Invariant: a check says nothing of what was not
gathered, so nothing is green that nobody looked at."""
