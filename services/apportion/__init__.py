"""Apportion shares accelerators among Kubernetes pods.

Every fact about devices, pods and placements is an event on one NATS JetStream stream, the
ledger. Every service folds that stream into a state and adds one kind of effect."""
