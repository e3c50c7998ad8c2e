"""Unit tests of how the CLI reads manifests and submits pods."""
