"""Unit tests of the users and the monitoring of the ledger's server."""
