"""Unit tests of `core/workloads/lint`."""
