"""Queue the pending pods: their order, the events that retry them, and the split by scheduler."""
