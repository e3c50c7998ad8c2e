"""Unit tests of how shares are made on a node, in folders and in the driver."""
