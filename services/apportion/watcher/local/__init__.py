"""The watcher of a machine without Kubernetes: turns a folder of manifests into events."""
