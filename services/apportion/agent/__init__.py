"""One process per node: turns the node's devices into events of the ledger.

The agent asks the driver (or a simulated backend) what devices the node has and how they are, and
writes NodeReported when that differs from what the ledger last said of the node, and
DeviceHealthChanged when a device fails or recovers. It follows the placements and bindings of its
own node, and once one is bound it takes the shares and writes SharesAllocated with the devices'
ids, or AllocationFailed with the reason. It acts on the ledger alone: killed at any moment and
started again, it reads what it said and what is bound, and does what is left to do, once. One
process can be the agents of a whole simulated fleet.

On a node with a kubelet, `kubelet` is the door at which containers ask for what they hold,
`shares.preparing` asks the ledger and `core.grants` what that is, and the modules beside it make
it. What is on disk then (regions, CDI files) is rebuilt from the ledger whenever it is missing.

The only one that says what its nodes have and hand out; an intake appends it."""
