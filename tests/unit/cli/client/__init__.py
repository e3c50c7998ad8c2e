"""Unit tests of `cli/client`."""
