"""One process per node that reports the node's devices and hands out shares of the devices.

The agent reads the devices from the driver (or a simulated backend) and appends NodeReported and
DeviceHealthChanged via an intake. Once a placement is bound, it prepares the shares and appends
SharesAllocated, or AllocationFailed with a reason. One process can serve a simulated fleet.

On a Kubernetes node, `shares.preparing` prepares the shares, and `kubelet` hands them to
containers. Invariant: the agent acts only on events in the ledger. After a restart, it completes
unfinished work, and rebuilds missing files (regions, CDI specifications) from the ledger."""
