"""Unit tests of the callout, which decides for NATS who may connect."""
