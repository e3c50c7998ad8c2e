"""The watcher of a Kubernetes cluster: its objects to events of the ledger."""
