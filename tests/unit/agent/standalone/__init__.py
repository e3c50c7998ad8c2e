"""Unit tests of the agent on a machine without a kubelet."""
