"""Appends the ledger's workload and cluster events: pods to place, gangs, pods that left.

A watcher compares the whole state of its source, a folder of manifests (`local`) or a cluster
(`kubernetes`), with the ledger and appends the difference, and so finds changes that it missed.
Invariant: replicas derive the same uids and event ids, and the server drops duplicates."""
