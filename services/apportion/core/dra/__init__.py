"""Dynamic Resource Allocation: devices and claims as the API group resource.k8s.io/v1 has them.

A claim becomes asks of its pod like any other (`requests`), the decision is a placement like any
other, and what was decided is written back as the claim's allocation (`allocation`). `slices` says
what devices there are. In the ledger a share that is held through a claim has the claim's name in
place of a container's (`names`), so that no event is needed beside those of every other pod.
Invariant: what is written here follows from the ledger alone, whoever writes it and however often.
"""
