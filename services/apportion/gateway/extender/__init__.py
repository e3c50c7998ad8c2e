"""The extender: where devices are, for a kube-scheduler that chooses nodes by all that it knows."""
