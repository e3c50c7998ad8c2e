"""Unit tests of the gateway's read API."""
