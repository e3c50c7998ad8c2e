"""Unit tests of the extender that answers kube-scheduler."""
