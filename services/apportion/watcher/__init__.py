"""Appends the ledger's workload and cluster events: pods to place, gangs, pods that left.

A watcher's source is a folder of manifests (`local`) or a cluster (`kubernetes`). The watcher
compares its source's whole state with the ledger and appends the difference, so it finds missed
changes. Invariant: replicas derive the same uids and event ids, so the server drops duplicates."""
