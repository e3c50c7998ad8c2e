"""The kubelet's interface: a device plugin per resource name, and the pods that use its slots.

`Allocate` names devices and no pod, so the plugin answers with a slot that has no content yet.
Before a container starts, `PreStartContainer` fills the slot: the kubelet's checkpoint names the
slot's pod, and the ledger has the pod's shares. `make generate` makes `kubelet_pb2` from
`kubelet.proto`. Invariant: a slot's content follows from the kubelet's records and the ledger,
never from annotations."""
