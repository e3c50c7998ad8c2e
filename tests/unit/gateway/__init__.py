"""Unit tests of the gateway, which answers questions about the cluster over HTTP."""
