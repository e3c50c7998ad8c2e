"""Pods of lower priority that give their places up for one of higher, as in kube-scheduler.

`victims` tries one node, `budgets` says whose eviction a PodDisruptionBudget forbids, `search`
compares nodes, and `preempting` says for whom it is done, and when.
"""
