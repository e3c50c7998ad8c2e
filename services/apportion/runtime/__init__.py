"""All access to the outside world (files, NATS, Kubernetes, processes), behind small interfaces.

Services reach the outside world only through this package, which transports bytes. Its `reader` and
`publisher` convert bytes from and to events. Invariant: nothing here decides about devices, pods or
placements."""
