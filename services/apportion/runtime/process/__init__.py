"""What a process has of its own: settings, clock, logs, metrics, memory."""
