"""The Kubernetes API: its only client, and a watch that loses no changes."""
