"""The webhook as a part of the process: its certificate, and the server that answers with it.

Invariant: it listens only once there is a certificate that the API server has been told to trust.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from apportion.gateway.admission import REVIEW_BYTES_MAX, Admission
from apportion.gateway.certificates import Keeper
from apportion.gateway.certificates_given import GivenCertificate
from apportion.gateway.certificates_tls import Tls
from apportion.gateway.choices import AdmissionChoice
from apportion.runtime.service.http import HttpServer, listening
from apportion.runtime.service.kube_options import KubeChoice
from apportion.runtime.service.lifecycle import Service

SECRET = "admission-certificates"  # noqa: S105 - the name of a Secret
CONFIGURATION = "apportion"


class _Certificates(Protocol):
    """Where the certificate comes from."""

    problem: str

    async def run(self) -> None:
        """Look after it until cancelled."""

    async def serving(self) -> None:
        """Return once there is one."""


class AdmissionService:
    """The webhook of one life of the gateway."""

    def __init__(
        self, choice: AdmissionChoice, kube: KubeChoice, admission: Admission, service: Service
    ) -> None:
        self._choice = choice
        self._kube = kube
        self._admission = admission
        self._service = service
        self._certificates: _Certificates | None = None
        self._listening = False

    def not_ready(self) -> list[str]:
        """Why nobody is admitted yet; empty from the first certificate on."""
        if self._listening:
            return []
        problem = self._certificates.problem if self._certificates else "connecting"
        return [f"admission: {problem}"]

    async def run(self) -> None:
        """Serve until cancelled."""
        tls = Tls()
        async with self._made_or_given(tls) as certificates, asyncio.TaskGroup() as tasks:
            self._certificates = certificates
            tasks.create_task(certificates.run(), name="certificates")
            await certificates.serving()
            server = HttpServer(
                self._choice.listen,
                metrics=self._service.metrics,
                not_ready=self._service.reasons_against_ready,
                routes=self._admission.routes(),
                key="--admission",
                tls=tls.context,
                request_bytes_max=REVIEW_BYTES_MAX,
            )
            async with listening(server) as address:
                self._service.log.info("admitting", url=f"https://{address}/")
                self._listening = True
                await asyncio.Event().wait()

    @asynccontextmanager
    async def _made_or_given(self, tls: Tls) -> AsyncIterator[_Certificates]:
        choice, clock = self._choice, self._service.clock
        if choice.files is not None:
            yield GivenCertificate(*choice.files, tls, clock)
            return
        from apportion.gateway.certificates_kube import KubeStore  # noqa: PLC0415 - see kube_options
        from apportion.runtime.kube.client import open_kube  # noqa: PLC0415

        async with open_kube(self._kube.kubeconfig, self._kube.context) as api:
            secret = (choice.namespace, SECRET)
            store = KubeStore(api, secret=secret, configuration=CONFIGURATION)
            yield Keeper(store, tls, clock, choice.hosts, choice.life_s)
