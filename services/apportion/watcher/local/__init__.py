"""The watcher of a machine without Kubernetes: a folder of manifests to events of the ledger."""
