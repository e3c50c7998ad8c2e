"""Unit tests of how the CLI talks to the ledger and to the gateway."""
