"""One process per node that reports the node's devices and hands out their shares.

The agent asks the driver (or a simulated backend) for the node's devices and writes NodeReported
and DeviceHealthChanged through an intake. Once a placement on its node is bound, it prepares the
shares and writes SharesAllocated, or AllocationFailed with the reason. One process can be the
agents of a whole simulated fleet. With a kubelet, containers get their shares through `kubelet`;
`shares.preparing` works out what they get. Invariant: the agent acts on the ledger alone. After
a restart it does what is left to do, once, and rebuilds missing files (regions, CDI
specifications) from the ledger."""
