"""Verbs that change what the cluster does."""
