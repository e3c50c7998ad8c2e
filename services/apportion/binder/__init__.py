"""Turns a placement into a binding, and records what came of it.

Binders share one durable queue of placements: start as many as you like. A binder folds the whole
ledger, waits until its fold has passed the placement that it was handed, and binds only if that
placement is still the pod's live one; then it writes PodBound, or BindFailed with the reason, and
only when that is durable does it acknowledge. A placement that fails for now is handed out again
after a growing pause, while all others go on; after a bounded number of tries it has failed for
good, and the scheduler takes it back; one that nobody answered is asked after for ever, for it may
have been made. Where there is no Kubernetes the ledger is all there is, and binding has no effect
outside it. In Kubernetes a binding is one call that carries the annotations, and the binder also
tells people, and lets gangs in.

The only writer of binding events; binding again is recognised and harmless."""
