"""Our only client of the Kubernetes API, and a watch that loses no changes."""
