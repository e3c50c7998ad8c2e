"""All access to the outside world (files, NATS, Kubernetes, processes), behind small interfaces.

Services reach the outside only through this package, which transports bytes. Its modules
`ledger.reader` and `ledger.publisher` convert the bytes to and from events. Invariant: nothing here
decides on placements."""
