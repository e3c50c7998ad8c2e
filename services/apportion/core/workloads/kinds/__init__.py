"""Read each kind of document into the pods, gangs, queues and quotas that it describes."""
