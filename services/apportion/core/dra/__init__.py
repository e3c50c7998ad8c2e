"""Dynamic Resource Allocation (DRA): serve ResourceClaims of resource.k8s.io/v1.

The requests of a claim become asks of its pod, and the pod's placement becomes the claim's
allocation. In the ledger, a share of a claim has the claim's name instead of a container's, so DRA
needs no extra event. Invariant: what is written to Kubernetes follows from the ledger alone."""
