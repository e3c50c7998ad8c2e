"""Unit tests of the watcher of a folder of manifests, for use without Kubernetes."""
