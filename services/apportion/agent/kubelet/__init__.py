"""The kubelet's interface: a device plugin for each count name, and the pods that use its slots.

`Allocate` names devices and no pod, so the plugin answers with a slot that has no meaning yet.
Before a container starts, `PreStartContainer` gives the slot its meaning: the kubelet's books name
the slot's pod, and the ledger has the pod's shares. `make generate` makes `kubelet_pb2` from
`kubelet.proto`. Invariant: a slot's meaning follows from the kubelet's books and the ledger,
never from annotations."""
