"""Tests with real faults on three servers: real processes, real signals and a full disk."""
