"""Every endpoint of the gateway, for its gate, its refusals, the OpenAPI document and the docs."""

from typing import Final

from apportion.gateway.access import acts, session
from apportion.gateway.api import diff, history, log
from apportion.gateway.api.doctor import DOCTOR
from apportion.gateway.api.endpoint import Endpoint
from apportion.gateway.api.live import EVENTS
from apportion.gateway.api.plans import PLAN
from apportion.gateway.api.reads import READS
from apportion.gateway.api.reports import REPORTS

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *READS,
    *log.ENDPOINTS,
    *history.ENDPOINTS,
    diff.DIFF,
    *REPORTS,
    DOCTOR,
    EVENTS,
    PLAN,
    *acts.ENDPOINTS,
    *session.ENDPOINTS,
)
