"""Unit tests of `core/workloads/adoption`."""
