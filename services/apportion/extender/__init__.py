"""The extender: where devices are, for a kube-scheduler that chooses nodes by all that it knows.

A service of its own: whoever floods it takes no answer from people, and it holds no more of the
ledger than a fold. It writes nothing there; where kube-scheduler wants a pod is handed on to the
schedulers."""
