"""A container runtime for a real kubelet, without containers: commands run as local processes."""
