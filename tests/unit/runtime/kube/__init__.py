"""Unit tests of our Kubernetes client."""
