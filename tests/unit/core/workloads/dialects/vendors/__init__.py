"""Unit tests of `core/workloads/dialects/vendors`."""
