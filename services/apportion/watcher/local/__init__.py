"""The watcher of a machine without Kubernetes, which converts manifests in a folder to events."""
