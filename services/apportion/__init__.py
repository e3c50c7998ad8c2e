"""Apportion shares accelerators among Kubernetes pods.

The ledger is the cluster: every fact about devices, pods and placements is an event on one NATS
JetStream stream, and every service is a fold over it plus one kind of effect."""
