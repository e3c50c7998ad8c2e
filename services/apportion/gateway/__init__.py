"""The gateway serves the state as of any revision, and live events, over HTTP.

The gateway folds the ledger like every other reader. Two independent surfaces answer from that
fold: `api` for users and programs, and `console` for browsers. The gateway has no data of its own
and does not use the cluster."""
