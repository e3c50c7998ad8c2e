"""Unit tests of the watcher of a Kubernetes cluster."""
