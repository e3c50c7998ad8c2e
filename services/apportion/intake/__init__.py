"""The intake validates what agents report and appends it: no agent writes the ledger itself.

    agent ──► apportion.intake.NODE ──► its lane, bounded and paced ──► judged ──► LEDGER
          ◄── a revision, a refusal with its cause, or "ask again later" ◄───┘

Agents run next to users' workloads, so one compromised agent must not be able to write the ledger.
Any intake can take any request. Invariants: one agent's requests never delay another's. A request
is decoded only if its lane (queue) has room. A retry after a lost answer is appended once."""
