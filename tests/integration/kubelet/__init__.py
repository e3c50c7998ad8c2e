"""A real agent beside a kubelet that runs nothing: what the ledger decided is what is given."""
