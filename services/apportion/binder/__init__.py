"""The binder turns placements into bindings and records the outcome.

All binders share one durable queue of placements. A binder waits until its fold has passed a
placement, and binds the pod only if the placement is still valid. The binder appends PodBound or
BindFailed, and acknowledges once the event is durable. A failed placement is delivered again after
growing pauses. After a limited number of tries, the scheduler takes the placement back. If the API
server did not answer, there is no such limit, because the pod may have been bound. Only the binder
appends binding events, and repeating one is harmless."""
