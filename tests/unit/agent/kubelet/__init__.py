"""Parts of the kubelet integration that can be tested without a kubelet."""
