"""One process per node that reports the node's devices and hands out their shares.

The agent reads the node's devices from the driver (or a simulated backend) and writes NodeReported
and DeviceHealthChanged through an intake. Once a placement on the node is bound, the agent prepares
the shares and writes SharesAllocated, or AllocationFailed with the reason. One process can be the
agents of a whole simulated fleet. On a Kubernetes node, containers get their shares by `kubelet`;
`shares.preparing` decides what a container gets. Invariant: the agent acts on the ledger alone.
After a restart, it completes unfinished work once, and rebuilds missing files (regions, CDI
specifications) from the ledger."""
