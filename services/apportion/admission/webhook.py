"""The webhook as a part of the process: its certificate, and the server that answers with it.

Invariant: it listens only once there is a certificate that the API server has been told to trust.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from apportion.admission.certificates.keeper import Keeper
from apportion.admission.choices import AdmissionChoice
from apportion.admission.reviews import LIMITS, Reviews
from apportion.runtime.service.http import HttpServer, listening
from apportion.runtime.service.lifecycle import Service
from apportion.runtime.service.serving_tls import Tls, given_tls

SECRET = "admission-certificates"  # noqa: S105 - the name of a Secret
WEBHOOKS = "apportion"
"""The name of our MutatingWebhookConfiguration."""


class _Certificates(Protocol):
    """Where the certificate comes from."""

    problem: str

    async def run(self) -> None:
        """Look after it until cancelled."""

    async def serving(self) -> None:
        """Return once there is one."""


class Webhook:
    """The webhook of one life of the service."""

    def __init__(self, choice: AdmissionChoice, reviews: Reviews, service: Service) -> None:
        self._choice = choice
        self._reviews = reviews
        self._service = service
        self._certificates: _Certificates | None = None
        self._listening = False

    def not_ready(self) -> list[str]:
        """Why nobody is admitted yet; empty from the first certificate on."""
        if self._listening:
            return []
        problem = self._certificates.problem if self._certificates else "connecting"
        return [f"certificate: {problem}"]

    async def run(self) -> None:
        """Serve, and keep the certificate fresh, until cancelled."""
        async with self._made_or_given() as (tls, certificates), asyncio.TaskGroup() as tasks:
            self._certificates = certificates
            tasks.create_task(certificates.run(), name="certificates")
            await certificates.serving()
            server = HttpServer(
                self._choice.listen,
                metrics=self._service.metrics,
                not_ready=self._service.reasons_against_ready,
                routes=self._reviews.routes(),
                key="--listen",
                tls=tls.context,
                limits=LIMITS,
            )
            async with listening(server) as address:
                self._service.log.info("admitting", url=f"https://{address}/")
                self._listening = True
                await asyncio.Event().wait()

    @asynccontextmanager
    async def _made_or_given(self) -> AsyncIterator[tuple[Tls, _Certificates]]:
        choice, clock = self._choice, self._service.clock
        if choice.files is not None:
            yield given_tls(choice.files, clock)
            return
        from apportion.admission.certificates.kube import KubeStore  # noqa: PLC0415 - kube_options

        async with choice.kube.open() as api:
            secret = (choice.namespace, SECRET)
            store = KubeStore(api, secret=secret, configuration=WEBHOOKS)
            tls = Tls()
            yield tls, Keeper(store, tls, clock, choice.hosts, choice.life_s)
