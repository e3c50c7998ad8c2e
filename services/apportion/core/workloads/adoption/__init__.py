"""Pods that are bound: what the annotations on them say that they hold."""
