"""The kubelet's front door: a device plugin per count name, and who holds what it handed out.

The kubelet asks twice. `Allocate` names devices and no pod, before the pod exists: it is answered
with a slot, which means nothing yet, at once and always. `PreStartContainer` comes before every
start of a container, and may take its time: now the kubelet itself tells who holds the slot, the
ledger what that pod has, and the slot gets its meaning. So there is no lock and no guess.

The messages are in `kubelet.proto`; `make generate` makes `kubelet_pb2` of it. Invariant: what a
slot means follows from the kubelet's own books and from the ledger, never from an annotation."""
