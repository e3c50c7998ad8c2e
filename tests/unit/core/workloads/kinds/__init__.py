"""Unit tests of `core/workloads/kinds`."""
