"""Reports an agent's nodes to the ledger through an intake, and folds events about them."""
