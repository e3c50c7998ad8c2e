"""Unit tests of `runtime/kube`."""
