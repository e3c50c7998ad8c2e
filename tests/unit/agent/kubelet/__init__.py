"""Unit tests of the kubelet integration that need no kubelet."""
