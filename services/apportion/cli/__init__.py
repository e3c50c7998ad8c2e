"""The command line: what a person does with the ledger, and one verb for each service."""
