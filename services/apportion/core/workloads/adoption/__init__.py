"""Read bound pods: what their annotations say is allocated to them."""
