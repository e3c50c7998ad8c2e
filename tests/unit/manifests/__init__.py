"""Unit tests of manifests: what a document stands for."""
