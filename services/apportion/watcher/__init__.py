"""Appends the ledger's workload and cluster events: pods to place, gangs, pods that left.

A watcher's source is a folder of manifests (`local`) or a cluster (`kubernetes`). The watcher
compares the whole state of its source with the ledger and appends the difference, so it also finds
changes that it missed. Invariant: replicas derive the same uids and event ids, and the server drops
duplicates."""
