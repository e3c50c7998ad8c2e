"""The setup that every process needs: settings, clock, logs, metrics, memory."""
