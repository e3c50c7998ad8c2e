"""Pods of lower priority that give their places up for one of higher, as in kube-scheduler.

`victims` tries one node and counts whose eviction exceeds a PodDisruptionBudget; `preempting`
compares nodes, and says for whom it is done, and when."""
