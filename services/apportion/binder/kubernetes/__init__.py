"""The binder's Kubernetes side: binds and evicts pods, and writes what users see of them."""
