"""The queue of pending pods: order, queueing hints and sharding."""
