"""What each process sets up for itself: settings, clock, logs, metrics, memory."""
