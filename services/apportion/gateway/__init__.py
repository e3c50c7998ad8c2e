"""The gateway serves the state as of any revision, and live events, over HTTP.

The gateway folds the ledger like every other reader. Two packages serve the result: `api` for users
and programs, `console` for browsers. It has no data of its own and needs no Kubernetes cluster."""
