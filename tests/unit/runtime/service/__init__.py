"""Unit tests of `runtime/service`."""
