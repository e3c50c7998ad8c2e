"""Reads and partitions this node's NVIDIA GPUs through NVML; only this package imports `pynvml`."""
