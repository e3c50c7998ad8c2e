"""Turns what the cluster says about pods, nodes and groups into events of the ledger.

The only writer of workload and cluster events; replicas are harmless: the server drops doubles.
"""
