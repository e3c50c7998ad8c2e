"""Serves the kubelet through device plugins and DRA, and finds the pod that uses a slot.

A slot is the device that a plugin offers, a placeholder for a share. `Allocate` names slots but no
pod, so the plugin hands out an empty slot. Before a container starts, `PreStartContainer` fills the
slot: the kubelet's checkpoint names the slot's pod, and the ledger has the pod's shares. `make
generate` makes `kubelet_pb2` from `kubelet.proto`. Invariant: a slot's content follows from the
kubelet's records and the ledger, never from annotations."""
