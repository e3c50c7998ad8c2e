"""The read side over HTTP: the state as of a revision, and live events.

One fold like every other reader's, and surfaces that answer from it and know nothing of one
another: `api` for people and programs, `console` for browsers. It keeps no truth of its own, writes
nothing to the ledger, and knows nothing of a cluster."""
