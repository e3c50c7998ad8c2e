"""The parts of the kubelet's front door that need no kubelet."""
