"""The extender, from which kube-schedulers learn which nodes have the devices of a pod.

The extender is a service of its own so that a flood of requests does not slow the gateway. It
folds the ledger and never writes it: it sends kube-scheduler's choice of node to our schedulers."""
