"""Unit tests of the watcher of a folder of manifests."""
