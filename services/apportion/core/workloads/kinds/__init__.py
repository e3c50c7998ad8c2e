"""Kinds of documents: the pods, gangs, queues and quotas of each."""
