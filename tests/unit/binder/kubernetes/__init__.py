"""Unit tests of how the binder uses the Kubernetes API."""
