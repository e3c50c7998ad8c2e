"""The binder turns placements into bindings and records the outcome.

All binders share one durable queue of placements. A binder waits until its fold has passed a
placement, and binds the pod only if the placement is still live. The binder writes PodBound or
BindFailed, and acknowledges once that is durable. A failed placement is delivered again after a
growing pause, up to a bounded number of tries, after which the scheduler takes it back. If the API
server did not answer, there is no bound, because the pod may have been bound. Only the binder
writes binding events; a repetition is harmless."""
