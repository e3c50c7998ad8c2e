"""Unit tests of the verbs that change the cluster."""
