"""Clients of the gateway and the ledger, and the parsing of names and times."""
