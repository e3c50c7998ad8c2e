"""The setup of each process: settings, clock, logs, metrics, memory."""
