"""Measure how fast pods are bound in Kubernetes, compared with the API server's own limit.

    python -m tests.benchmarks.bind --json

Runs a real etcd, kube-apiserver and ledger with all services on this machine. Each node has eight
simulated GPUs. The pods are divided into three batches, because a machine's speed varies. After the
services have bound a batch, they pause, and a simple client binds the same number of pods.

- `bound_per_s` counts from the first PodSubmitted to the last PodBound.
- `raw_binds_per_s` is the simple client's rate, and `ratio` is `bound_per_s` divided by it.
- `writes_per_pod` counts the mutating API requests during binding, except those for Events.
- `p99_ms` is from a pod's creation to its PodBound, at `--steady` pods per second."""

import argparse
import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from apportion.runtime.jetstream.client import JetStreamLedger
from apportion.runtime.jetstream.wire import STREAM, call_api
from apportion.runtime.kube.client import KubeApi, open_kube
from apportion.runtime.ledger.port import Record
from apportion_schemas import PodBound, PodSubmitted, decode
from apportion_schemas.quantities import Payload
from tests.benchmarks.telling import parser_of, tell
from tests.support.control_plane import ControlPlane, binaries
from tests.support.facts import Facts
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.nats import Bus, running_bus
from tests.support.polling import until
from tests.support.processes import ServiceProcess

P = TypeVar("P", bound=Payload)
CONCURRENCY = 64
WAIT_S = 300
TURNS = 3
PODS = "/api/v1/namespaces/default/pods"
_COUNT = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
MUTATING = {"POST", "PUT", "PATCH", "DELETE"}


async def many(works: list[Callable[[], Awaitable[Any]]]) -> None:
    """Run all these functions, `CONCURRENCY` of them at a time."""
    waiting = iter(works)

    async def worker() -> None:
        for work in waiting:
            await work()

    await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))


async def post(api: KubeApi, path: str, document: dict[str, Any]) -> None:
    answer = await api.request("POST", path, body=msgspec.json.encode(document))
    assert answer.ok, answer.refusal()


async def create_pods(api: KubeApi, prefix: str, count: int) -> None:
    """Create `count` pods of eight shapes. The cluster has room for all of them."""
    pods = [kube_pod(f"{prefix}-{n}", share(1000 + 500 * (n % 8), 2 + n % 8)) for n in range(count)]
    await many([partial(post, api, PODS, pod) for pod in pods])


async def raw_s(api: KubeApi, nodes: int, count: int, annotations: dict[str, str]) -> float:
    """Return the seconds that one client needs for `count` bindings while no service runs."""

    def binding(number: int) -> Callable[[], Awaitable[None]]:
        name = f"raw-{number}"
        document = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % nodes}"},
        }
        return lambda: post(api, f"{PODS}/{name}/binding", document)

    began = time.perf_counter()
    await many([binding(number) for number in range(count)])
    return time.perf_counter() - began


async def remove_pods(api: KubeApi, prefix: str, count: int) -> None:
    """Delete the pods without a grace period, as the kubelet does with ended pods."""
    now = msgspec.json.encode({"gracePeriodSeconds": 0})
    paths = [f"{PODS}/{prefix}-{n}" for n in range(count)]
    await many([partial(api.request, "DELETE", path, body=now) for path in paths])


async def mutations(api: KubeApi) -> int:
    """Return the number of mutating requests so far, except those for Events and leases."""
    kinds = (await writes(api)).items()
    return sum(count for kind, count in kinds if kind.split()[0] not in {"events", "leases"})


async def writes(api: KubeApi) -> Counter[str]:
    """Return how many mutating requests the API server has answered, counted by resource.

    A refused request is counted under its resource and its HTTP status, for example `pods/binding
    409`."""
    found = Counter[str]()
    for labels, count in _COUNT.findall((await api.get("/metrics")).decode()):
        about = dict(_LABEL.findall(labels))
        if about["verb"] in MUTATING and about["resource"]:
            kind = "/".join(filter(None, (about["resource"], about["subresource"])))
            refused = "" if about["code"].startswith("2") else f" {about['code']}"
            found[kind + refused] += int(float(count))
    return found


class _State(msgspec.Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct, frozen=True):
    state: _State


class Log:
    """Reads the ledger for the benchmark, but fetches records only after the measurement.

    During the measurement, this class asks the server only for the number of bindings. Reading
    every record then would take 5 % of the services' CPU. No real cluster has such a reader."""

    def __init__(self, ledger: JetStreamLedger) -> None:
        self._ledger = ledger
        self._records: list[Record] = []

    async def bound(self) -> int:
        """Return the current number of bindings."""
        query = {"subjects_filter": "apportion.v1.binding.>"}
        info = await call_api(self._ledger.wire, f"STREAM.INFO.{STREAM}", query)
        return sum((msgspec.json.decode(info, type=_Info).state.subjects or {}).values())

    async def until_bound(self, count: int) -> None:
        async def there() -> bool:
            return await self.bound() >= count

        await until(there, f"{count} bindings", timeout_s=WAIT_S, interval_s=0.5)

    async def read(self) -> None:
        self._records.clear()
        reading = await self._ledger.follow(self._records.append)
        await reading.caught_up()
        await reading.stop()

    def binding_s(self, pods: int, turn: int) -> float:
        """Return how many seconds the services took to bind all `pods` pods.

        The pods were created in batches of `turn`. The times of the batches are added up."""
        submitted = [moment_s for moment_s, _ in self.of(PodSubmitted)]
        bound = [moment_s for moment_s, _ in self.of(PodBound)]
        turns = range(0, pods, turn)
        return sum(bound[first + turn - 1] - submitted[first] for first in turns)

    def of(self, kind: type[P]) -> list[tuple[float, P]]:
        """Return the payloads of this type in ledger order, each with its event's time."""
        events = (decode(record.payload, subject=record.subject) for record in self._records)
        return [(seconds(e.time), e.data) for e in events if isinstance(e.data, kind)]


@contextmanager
def stopped_short(services: list[ServiceProcess]) -> Iterator[None]:
    """Suspend these services until the block ends."""
    for service in services:
        service.stop_short()
    try:
        yield
    finally:
        for service in services:
            service.go_on()


async def after(wait_s: float) -> None:
    """Sleep for `wait_s` seconds; return at once if it is negative."""
    due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(max(wait_s, 0.0), due.set_result, None)
    await due


async def services_turn(world: KubeWorld, api: KubeApi, log: Log, turn: int, count: int) -> int:
    """Create `count` pods, and let the services bind them. Return the number of API writes."""
    await create_pods(api, f"pod-{turn}", count)
    watcher = world.service("watcher")
    before = await mutations(api)
    async with watcher:
        await log.until_bound((turn + 1) * count)
        return await mutations(api) - before


async def steady_p99_ms(log: Log, api: KubeApi, count: int, per_s: float) -> float:
    """Create `count` pods at a steady rate, and return how long their bindings take.

    The result is the 99th percentile in milliseconds, from a pod's creation to its PodBound."""
    created_s: dict[str, float] = {}
    before = await log.bound()
    began_s = time.time()
    for number in range(count):
        await after(began_s + number / per_s - time.time())
        name = f"steady-{number}"
        created_s[name] = time.time()
        await post(api, PODS, kube_pod(name, share(1000, 2)))
    await log.until_bound(before + count)
    await log.read()
    names = {pod.uid: pod.name for _, pod in log.of(PodSubmitted)}
    took_s = sorted(
        moment_s - created_s[names[bound.pod]]
        for moment_s, bound in log.of(PodBound)
        if names[bound.pod] in created_s
    )
    return 1000 * took_s[int(0.99 * (len(took_s) - 1))]


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the benchmark once, with the servers' data in `folder`."""
    plane = ControlPlane(binaries(), folder / "plane")
    plane.start()
    try:
        async with open_kube(plane.kubeconfig, None) as api, running_bus(folder / "nats") as bus:
            return await _measure(options, plane, api, bus)
    finally:
        plane.stop()


async def _measure(
    options: argparse.Namespace, plane: ControlPlane, api: KubeApi, bus: Bus
) -> dict[str, Any]:
    log = Log(await bus.connect("auditor"))
    resources = {"allocatable": {"cpu": "256", "memory": "2000Gi", "pods": "250"}}
    nodes = [kube_node(f"node-{number}", **resources) for number in range(options.nodes)]
    await many([partial(post, api, "/api/v1/nodes", node) for node in nodes])
    fleet = ("--simulate", "8xA100-80GB", "--nodes", str(options.nodes), "--node", "node-{}")
    count = options.pods // TURNS
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(open_kube(plane.kubeconfig_of("binder"), None))
        world = KubeWorld(plane, bus, Facts(bus), stack)
        services = (("agent", *fleet), ("scheduler", "--name", "bench"), ("binder",))
        others = [await world.start(verb, *more) for verb, *more in services]
        writes, bare_s = 0, 0.0
        for turn in range(TURNS):
            writes += await services_turn(world, api, log, turn, count)
            pod = msgspec.json.decode(await api.get(f"{PODS}/pod-{turn}-0"))
            await create_pods(api, "raw", count)
            with stopped_short(others):
                bare_s += await raw_s(bare, options.nodes, count, pod["metadata"]["annotations"])
            await remove_pods(api, "raw", count)
        async with world.service("watcher") as watcher:
            await watcher.ready()
            p99_ms = await steady_p99_ms(log, api, options.steady_pods, options.steady)
    pods = TURNS * count
    rate, raw = pods / log.binding_s(pods, count), pods / bare_s
    return {
        "nodes": options.nodes,
        "pods": pods,
        "bound_per_s": round(rate),
        "raw_binds_per_s": round(raw),
        "ratio": round(rate / raw, 3),
        "p99_ms": round(p99_ms, 1),
        "writes_per_pod": round(writes / pods, 4),
    }


def in_a_folder(given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(given, Path(folder)))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--steady", type=float, default=50.0)
    parser.add_argument("--steady-pods", type=int, default=500)
    tell(parser, in_a_folder)


if __name__ == "__main__":
    main()
