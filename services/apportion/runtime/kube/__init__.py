"""The Kubernetes API: the only client, and a watch that loses nothing."""
