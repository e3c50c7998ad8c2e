"""Unit tests of what every process needs: settings, logs, keys, TLS, memory and compiled
modules."""
