"""The Kubernetes API: our only client of it, and a watch that loses no changes."""
