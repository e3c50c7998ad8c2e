"""Pods that wait: in which order, in whose shard, and what may help those that fit nowhere."""
