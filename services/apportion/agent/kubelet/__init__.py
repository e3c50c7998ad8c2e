"""The kubelet's front door: a device plugin for each count name, and who uses its slots.

`Allocate` names devices and no pod; it is answered with a slot, which has no meaning yet. Before
a container starts, `PreStartContainer` gives the slot its meaning: the kubelet's books say which
pod has it, and the ledger what that pod has. `make generate` makes `kubelet_pb2` from
`kubelet.proto`. Invariant: a slot's meaning follows from the kubelet's books and the ledger,
never from annotations."""
