"""The webhook's process, on a real ledger without a cluster, applies the newest configuration."""

import asyncio
import base64
import gc
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apportion.admission.reviews import PATH
from apportion.runtime.ledger.port import Draft
from apportion_schemas import Configuration, ConfigurationChanged
from tests.support.authority import Authority, Pair
from tests.support.certificates import HOST, given_certificate
from tests.support.facts import Facts
from tests.support.kube_objects import kube_pod, share
from tests.support.nats import Bus, running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess


class Webhook:
    """A webhook process. The test sends it requests as an API server does."""

    def __init__(self, bus: Bus, folder: Path, *options: str) -> None:
        self._authority, told = given_certificate(folder)
        told += options
        self.shown: Pair | None = None
        url = bus.server.url_for("admission")
        self.process = ServiceProcess("admission", url, "--listen", f"{HOST}:0", *told)
        self.url = ""

    async def ready(self) -> None:
        """Wait until the webhook is ready, and store its address."""
        await self.process.ready()
        await self.process.logged("admitting")
        lines = [line for line in self.process.log if line.get("event") == "admitting"]
        self.url = str(lines[-1]["url"])

    async def filled_in(self) -> str:
        """Return the scheduler name that the webhook adds to a pod without one, or the webhook's
        error."""
        return await asyncio.to_thread(self._filled_in)

    def _filled_in(self) -> str:
        pod = kube_pod("p", share(), schedulerName="default-scheduler")
        asked = {
            "uid": "u-1", "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "namespace": "team", "object": pod,
        }  # fmt: skip
        review = {
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked,
        }  # fmt: skip
        request = urllib.request.Request(  # noqa: S310 - our own
            self.url.rstrip("/") + PATH, data=json.dumps(review).encode(), method="POST"
        )
        context = ssl.create_default_context(cafile=str(self._authority.ca))
        if self.shown is not None:
            context.load_cert_chain(*self.shown)
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:  # noqa: S310
                response: Any = json.loads(answer.read())["response"]
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["error"])
        (patch,) = json.loads(base64.b64decode(response["patch"]))
        return str(patch["value"])

    async def comes_to_fill_in(self, name: str) -> None:
        """Wait until the webhook sets this scheduler in a pod."""

        async def so() -> bool:
            return await self.filled_in() == name

        await until(so, f"pods to be filled in with {name}")

    async def measures(self, line: str) -> bool:
        """Return True if /metrics has this line."""
        return line in (await self.process.get("/metrics"))[1].splitlines()


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger that has a configuration and other events."""
    opened = Facts(bus)
    await opened.open()
    await opened.submit("a", "b")
    await opened.write(naming("first"))
    return opened


@pytest.fixture
async def webhook(bus: Bus, facts: Facts, tmp_path: Path) -> AsyncIterator[Webhook]:
    """Provide a webhook that is ready."""
    del facts  # is there first
    made = Webhook(bus, tmp_path)
    async with made.process:
        await made.ready()
        yield made


def naming(scheduler: str) -> ConfigurationChanged:
    """Return a configuration change under which the webhook gives pods this scheduler name."""
    configuration = Configuration(scheduler_names=(scheduler,))
    return ConfigurationChanged(by="test", configuration=configuration)


async def test_pods_are_judged_by_the_configuration_and_by_each_that_comes(
    webhook: Webhook, facts: Facts
) -> None:
    """The webhook uses the ledger's configuration, and applies each later one without a restart."""
    assert await webhook.filled_in() == "first"
    await facts.submit("c")
    revision = await facts.write(naming("second"))
    await webhook.comes_to_fill_in("second")
    assert await webhook.measures(f"apportion_admission_configuration_revision {revision}.0")
    assert await webhook.measures('apportion_events_folded_total{type="ConfigurationChanged"} 2.0')
    assert await webhook.measures('apportion_events_folded_total{type="PodSubmitted"} 0.0')


async def test_while_the_ledger_is_away_it_goes_on_by_the_last_one_and_says_so(
    webhook: Webhook, bus: Bus, facts: Facts
) -> None:
    """While the ledger is down the webhook stays ready, uses the last configuration, and logs the
    outage."""
    await bus.crash()
    line = await webhook.process.logged("ledger unreachable")
    assert (line["level"], line["configuration"]) == ("warning", facts.revision)
    assert await webhook.measures("apportion_admission_configuration_unsure 1.0")
    assert await webhook.filled_in() == "first"
    assert (await webhook.process.get("/readyz"))[0] == 200
    await bus.restart()
    await facts.write(naming("second"))
    await webhook.comes_to_fill_in("second")
    await webhook.process.logged("ledger reachable again")
    assert await webhook.measures("apportion_admission_configuration_unsure 0.0")


async def test_begun_while_the_ledger_is_away_it_judges_nobody(
    bus: Bus, facts: Facts, tmp_path: Path
) -> None:
    """A webhook started while the ledger is down is not ready until it has read the
    configuration."""
    del facts
    await bus.crash()
    webhook = Webhook(bus, tmp_path)
    async with webhook.process:
        await webhook.process.logged("waiting for the ledger")
        # the reason depends on the moment: it waits to restart, or is connecting again
        assert (await webhook.process.get("/readyz"))[0] == 503
        await bus.restart()
        await webhook.ready()
        assert await webhook.filled_in() == "first"


# CPython leaves a TLS socket open whose peer has gone between connect and handshake.
@pytest.mark.filterwarnings("ignore:.*ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
async def test_killed_in_the_middle_of_its_work_it_goes_on(webhook: Webhook, facts: Facts) -> None:
    """A restarted webhook needs no repair, because all its data is in the ledger."""
    asking = [asyncio.create_task(webhook.filled_in()) for _ in range(8)]
    await webhook.process.kill()
    await asyncio.gather(*asking, return_exceptions=True)
    asking.clear()
    gc.collect()
    webhook.process.log.clear()  # the next life has another address
    await facts.write(naming("second"))
    await webhook.process.start()
    await webhook.ready()
    assert await webhook.filled_in() == "second"
    assert await webhook.process.stop() == 0


async def test_a_configuration_of_a_newer_build_halts_it(webhook: Webhook, bus: Bus) -> None:
    """Once the ledger has a configuration that the webhook's build cannot read, the webhook halts
    and answers every request with the reason."""
    event = {
        "specversion": "1.0", "type": "apportion.dev/ConfigurationChanged", "schemaversion": 99,
        "id": "x", "source": "future", "time": "2030-01-01T00:00:00.000000Z", "data": {},
    }  # fmt: skip
    operator = await bus.connect("operator")
    draft = Draft("apportion.v1.operator.configuration", "x", json.dumps(event).encode())
    await operator.append([draft])

    async def halted() -> str:
        said = await webhook.filled_in()
        return said if "not ready" in said else ""

    reason = await until(halted, "the webhook to halt")
    assert "schemaversion" in reason
    assert (await webhook.process.get("/readyz"))[0] == 503


async def test_behind_a_ca_only_the_api_server_is_answered(tmp_path: Path) -> None:
    """With a client CA the webhook answers only the API server."""
    apiserver, other = Authority(tmp_path, "apiserver-ca"), Authority(tmp_path, "other-ca")
    async with running_bus(tmp_path / "bus") as bus:
        webhook = Webhook(bus, tmp_path, "--tls-client-ca", str(apiserver.ca))
        async with webhook.process:
            await webhook.ready()
            for shown in (None, other.issue("stranger")):
                webhook.shown = shown
                with pytest.raises((OSError, http.client.HTTPException)):
                    await webhook.filled_in()
            webhook.shown = apiserver.issue("apiserver")
            await webhook.comes_to_fill_in("apportion")
