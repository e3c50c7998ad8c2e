"""Unit tests of the verbs that show the cluster and its history."""
