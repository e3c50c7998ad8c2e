"""Evict pods of lower priority for a pod of higher priority, as kube-scheduler does.

`victims` tries one node, and counts evictions that exceed a PodDisruptionBudget. `preempting`
compares nodes, and decides for which pod to evict, and when. `moving` searches the same nodes for
pods to move elsewhere."""
