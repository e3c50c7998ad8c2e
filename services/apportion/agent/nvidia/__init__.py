"""The cards of NVIDIA on this node, through the driver's NVML; `pynvml` is imported here alone."""
