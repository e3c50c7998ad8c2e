"""The extender tells kube-schedulers which nodes have the devices that a pod requests.

It is a separate service, so that a flood of requests does not slow the gateway. The extender folds
the ledger and never writes to it. It sends kube-scheduler's choice of node to our schedulers."""
