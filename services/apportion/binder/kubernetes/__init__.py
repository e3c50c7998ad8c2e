"""The binder's Kubernetes side: binds and evicts pods, and writes their events and status."""
