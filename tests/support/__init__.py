"""Shared helpers for tests: builders, servers, polling."""
