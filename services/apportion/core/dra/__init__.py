"""Dynamic Resource Allocation (DRA): serve ResourceClaims of resource.k8s.io/v1.

A claim becomes asks of its pod, and the placement becomes the claim's allocation. In the ledger,
the shares of a claim name the claim instead of a container, so no extra event is needed. Invariant:
what is written to Kubernetes follows from the ledger alone, so it can be repeated."""
