"""Tests with real faults: three servers, real processes, real signals and a full disk."""
