"""Read each kind of document: the pods, gangs, queues and quotas in it."""
