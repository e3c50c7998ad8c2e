"""Unit tests of the watcher that follows a Kubernetes cluster."""
