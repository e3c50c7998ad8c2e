"""The extender tells kube-schedulers which nodes have the devices of a pod.

It is a service of its own so that a flood of requests does not slow the gateway. It only folds
the ledger and never writes it: it passes kube-scheduler's choice of node on to our schedulers."""
