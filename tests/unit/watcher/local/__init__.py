"""Unit tests of the watcher that follows a folder of manifests."""
