"""Read bound pods: determine from annotations what is allocated to them."""
