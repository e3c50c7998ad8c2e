"""Dynamic Resource Allocation (DRA): devices and claims of resource.k8s.io/v1.

A claim becomes asks of its pod (`requests`), the decision is an ordinary placement, and the result
is written back as the claim's allocation (`allocation`). In the ledger, a share allocated through a
claim has the claim's name instead of a container's (`names`), so no extra event is needed.
Invariant: what is written to Kubernetes follows from the ledger alone, so it can be repeated."""
