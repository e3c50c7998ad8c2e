"""The gateway's own metrics, which are created once per process."""

from apportion.runtime.process.metrics import Metrics


class Measures:
    """The gateway's own metrics, in addition to those of every service."""

    def __init__(self, metrics: Metrics) -> None:
        self.requests = metrics.counter(
            "apportion_gateway_requests_total",
            "Requests by endpoint and status.",
            ("what", "status"),
        )
        self.answer_seconds = metrics.histogram(
            "apportion_gateway_answer_seconds", "Time to build and encode one response."
        )
        self.stream_clients = metrics.gauge(
            "apportion_gateway_stream_clients",
            "Number of clients that are connected to the event stream.",
        )
        self.plan_seconds = metrics.histogram(
            "apportion_gateway_plan_seconds", "Time to compute one plan of placements."
        )
