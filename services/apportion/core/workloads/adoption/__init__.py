"""Read bound pods: determine from annotations which devices are allocated to them."""
