"""A fake NVIDIA driver: C libraries that programs load, and a class with which tests control it
(`driver.py`)."""
