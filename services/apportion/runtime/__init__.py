"""The outside world, behind small interfaces: ledger, clock, settings, logs, metrics, lifecycle.

Services talk to the world only through this layer. It moves bytes; at its edge `reader` and
`publisher` turn them into events and back. Invariant: nothing in here decides anything about
devices, pods or placements."""
