"""The scheduler: folds the ledger, decides where pods go, and appends what it decided.

`cycle` is the loop and puts decisions into fenced, chained drafts; the decision itself is core's
engine. It talks to the ledger and to nothing else. When it dies, another replica or its own restart
folds the ledger and goes on; whatever it had appended stands, whatever it had not is decided again.

Invariant: it decides only on a state that holds its own last decision, so within one scheduler no
placement is ever weighed against a stale node."""
