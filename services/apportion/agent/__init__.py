"""One process per node that reports the node's devices and hands out their shares.

The agent asks the driver (or a simulated backend) for the node's devices. It writes NodeReported
when they differ from the ledger and DeviceHealthChanged when a device fails or recovers; an intake
appends these events. Once a placement on its node is bound, it prepares the shares and writes
SharesAllocated, or AllocationFailed with the reason. One process can be the agents of a whole
simulated fleet.

On a node with a kubelet, containers get their shares through `kubelet`. `shares.preparing` works
out what a container gets from the ledger and `core.grants`. Invariant: the agent acts on the
ledger alone. After a restart it does what is left to do, once, and rebuilds missing files
(regions, CDI specifications) from the ledger."""
