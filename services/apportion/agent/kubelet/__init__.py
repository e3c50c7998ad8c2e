"""The kubelet's front door: a device plugin for each count name, and who uses its slots.

`Allocate` names devices and no pod; it is answered at once with a slot, which has no meaning
yet. `PreStartContainer` comes before every start of a container and may take its time: the
kubelet's books say which pod has the slot, the ledger says what that pod has, and the slot gets
its meaning. So there is no lock and no guess. `make generate` makes `kubelet_pb2` from
`kubelet.proto`. Invariant: a slot's meaning follows from the kubelet's books and the ledger,
never from annotations."""
