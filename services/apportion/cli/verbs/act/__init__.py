"""Verbs that change the cluster."""
