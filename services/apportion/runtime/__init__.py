"""All access to the outside world, behind small interfaces.

Services reach the outside world only through this package, which moves bytes; its `reader` and
`publisher` convert bytes from and to events.
Invariant: nothing here decides about devices, pods or placements."""
