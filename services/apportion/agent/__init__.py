"""One process per node: turns the node's devices into events of the ledger.

The only writer of the inventory and allocation of its node.
"""
