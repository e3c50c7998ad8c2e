"""What verbs talk to: the gateway, the ledger, and the moments and names of a command line."""
