"""Unit tests of `core/workloads/pods`."""
