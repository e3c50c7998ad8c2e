"""Unit tests of the watcher, which reports pods, nodes and other objects to the ledger."""
