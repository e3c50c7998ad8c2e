"""The watcher of a Kubernetes cluster: turns its objects into events of the ledger."""
