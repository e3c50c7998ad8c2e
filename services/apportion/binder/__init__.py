"""The binder turns placements into bindings and records the outcome.

All binders share one durable queue of placements, so any number can run. A binder folds the
whole ledger and waits until its fold has passed the delivered placement. It binds only if that
placement is still the pod's live one, writes PodBound or BindFailed, and acknowledges once that
is durable.

A placement that fails is delivered again after a growing pause; the others go on. After a
bounded number of tries it has failed finally, and the scheduler takes it back. If the API server
did not answer, the binder retries without a bound, because the pod may have been bound.

Without Kubernetes, binding has no effect outside the ledger. In Kubernetes a binding is one API
call that carries the annotations. There the binder also writes pod events and admits gangs. Only
the binder writes binding events; binding the same placement again is harmless."""
