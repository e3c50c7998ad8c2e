"""What a container gets of its shares, and the region that holds it to them."""
