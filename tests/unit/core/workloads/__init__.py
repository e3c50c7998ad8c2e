"""Unit tests of `core/workloads`."""
