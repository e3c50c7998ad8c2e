"""The agent on a machine without a kubelet: the commands of `apportion run`."""
