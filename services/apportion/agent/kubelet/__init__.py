"""Serves the kubelet through device plugins and DRA, and finds the pod that uses a slot.

A slot is the device that a plugin offers, a placeholder for a share. `Allocate` names slots but no
pod, so the plugin hands out an empty slot. `PreStartContainer` fills the slot before a container
starts: the kubelet's checkpoint has the slot's pod, and the ledger has the pod's shares. Invariant:
the content of a slot follows from the kubelet's records and the ledger, never from annotations.
`make generate` makes `kubelet_pb2` from `kubelet.proto`."""
