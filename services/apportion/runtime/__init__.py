"""The outside world, behind small interfaces: ledger, clock, settings, logs, metrics, lifecycle.

Services talk to the world only through this layer, and this layer knows no event type: it moves
bytes. Invariant: nothing in here decides anything about devices, pods or placements.
"""
