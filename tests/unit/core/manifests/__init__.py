"""Unit tests of `core/manifests`."""
