"""Queue the pending pods: order, queueing hints and sharding."""
