"""Unit tests of the binder in a Kubernetes cluster."""
