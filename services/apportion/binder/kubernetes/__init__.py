"""What the binder does in a Kubernetes cluster: binds, evicts, and writes what people see."""
