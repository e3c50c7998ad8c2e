"""Read pods that are already bound: find out from annotations which devices they use."""
