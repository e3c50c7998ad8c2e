"""The read side over HTTP: the state as of a revision, live events, and what kube-scheduler asks.

One fold like every other reader's, and two surfaces that answer from it and know nothing of one
another: `api` for people and programs, `extender` for kube-schedulers. It keeps no truth of its
own, writes nothing to the ledger, and knows nothing of a cluster.
"""
