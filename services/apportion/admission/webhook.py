"""The webhook as a part of the process: its certificate, and the server that answers with it."""

from __future__ import annotations

import asyncio

from apportion.admission.choices import AdmissionChoice
from apportion.admission.reviews import LIMITS, Reviews
from apportion.runtime.service.http import HttpServer, listening
from apportion.runtime.service.lifecycle import Service
from apportion.runtime.service.serving_tls import given_tls


class Webhook:
    """The webhook of one life of the service."""

    def __init__(self, choice: AdmissionChoice, reviews: Reviews, service: Service) -> None:
        self._choice = choice
        self._reviews = reviews
        self._service = service
        self._listening = False

    def not_ready(self) -> list[str]:
        """Why the API server gets no answer yet; empty once the server listens."""
        return [] if self._listening else ["starting to listen"]

    async def run(self) -> None:
        """Serve, and follow changes of the certificate's files, until cancelled.

        Raises:
            ConfigError: the certificate cannot be used, or the address is taken.
        """
        tls, certificates = given_tls(self._choice.files, self._service.clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(certificates.run(), name="certificates")
            server = HttpServer(
                self._choice.listen,
                metrics=None,
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
