"""Everything that talks to the outside world, behind small interfaces.

Services reach the outside world only through this package. It moves bytes; its `reader` and
`publisher` convert them from and to events.
Invariant: nothing here decides about devices, pods or placements."""
