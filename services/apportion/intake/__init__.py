"""The intake judges what agents report and appends it: no agent writes the ledger itself.

    agent ──► apportion.intake.NODE ──► its lane, bounded and paced ──► judged ──► LEDGER
          ◄── a revision, a refusal with its cause, or "ask again later" ◄───┘

Agents run next to users' workloads on every node, so one compromised agent must not be able to
write the ledger. The NATS server lets an agent send requests on its own node's subject only. An
intake follows the whole ledger and appends for the agents, under event ids that it makes itself
and only on the subjects of the requesting node. All intakes share the requests in one queue
group.

Invariants: one agent's requests never delay another's; a request is decoded only if its lane has
room; a retry after a lost answer has the same id and is appended once. Only the intake appends
inventory, allocations and usage."""
