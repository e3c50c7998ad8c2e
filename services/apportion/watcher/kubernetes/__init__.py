"""The watcher of a Kubernetes cluster, which converts the cluster's objects into ledger events."""
