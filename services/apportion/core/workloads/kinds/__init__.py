"""Kinds of documents: the pods, gangs, queues and quotas that each stands for."""
