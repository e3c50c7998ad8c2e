"""NVIDIA's GPUs on this node, through the driver's NVML; only this package imports `pynvml`."""
