"""One process per node that reports the node's devices and hands out shares of the devices.

The agent reads the devices from the driver (or a simulated backend) and appends NodeReported and
DeviceHealthChanged through an intake. Once a placement on the node is bound, the agent prepares the
shares and appends SharesAllocated, or AllocationFailed with the reason. One process can act for a
whole simulated fleet.

On a Kubernetes node, `shares.preparing` prepares the shares, and `kubelet` hands them to
containers. Invariant: the agent acts on the ledger alone. After a restart, it completes unfinished
work, and rebuilds missing files (regions, CDI specifications) from the ledger."""
