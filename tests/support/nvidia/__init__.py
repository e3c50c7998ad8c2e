"""A fake NVIDIA driver: C libraries that programs load, and a handle for tests (`driver.py`)."""
