"""The sample pods of `apportion up`: submitted, decided, and shown with what became of each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from rich.console import Console

from apportion.cli.client.configuration import configuration_now
from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import open_ledger
from apportion.cli.exits import NotFound
from apportion.cli.pods.append import append, look_up
from apportion.cli.pods.decisions import Awaited
from apportion.cli.pods.live_diff import only_new
from apportion.cli.pods.manifest_files import read_manifests
from apportion.cli.render.output import phase, plain, table
from apportion.cli.render.tables import short_name, shown_phase
from apportion.core.answers.reads import PodAnswer, PodDetail, Why
from apportion.core.configuration import manifest_config
from apportion.core.explain.text import words
from apportion.core.explain.text.event_text import shares_words
from apportion.runtime.files.manifests import Problem, Wish

DECIDE_TIMEOUT_S = 30.0
_HERE = Path(__file__).parent
SUBMITTED = "samples"
"""The file in the data folder with the names of the samples that were submitted once."""
FOLDERS = (_HERE / "samples", _HERE.parents[3] / "examples" / "pods")
"""Package data of an installed Apportion, or the repository that it runs from."""


class Samples(msgspec.Struct, frozen=True):
    """What became of the samples; `first_placed_s` is on the monotonic clock, 0 if none was."""

    pods: list[PodAnswer]
    whys: dict[str, Why]
    problems: list[Problem]
    first_placed_s: float

    @property
    def never(self) -> int:
        """How many of them no node of the fleet could hold, even if nothing ran there."""
        return sum(why.refused is not None and why.refused.never for why in self.whys.values())

    @property
    def refused(self) -> bool:
        """Whether one of them has no place."""
        return bool(self.problems) or any(not pod.node for pod in self.pods)


def find_samples() -> Path | None:
    """The folder with the sample manifests."""
    return next((folder for folder in FOLDERS if folder.is_dir()), None)


async def submit_samples(where: Where, out: Console) -> Samples:
    """Submit those that are not live, and wait until each is decided.

    Raises:
        LedgerError, Unreachable: the ledger or the gateway went away.
    """
    folder = find_samples()
    if folder is None:
        return Samples([], {}, [Problem("samples", "no sample pods are installed")], 0.0)
    config = manifest_config((await configuration_now(where)).configuration)
    wish, problems = read_manifests([str(folder)], config)
    gateway = Gateway(where.gateway_url())
    async with open_ledger(where.reach()) as ledger:
        newest = await ledger.last_revision()
        basis, live = await asyncio.to_thread(look_up, gateway, wish.pods, at_least=newest)
        record = where.data / SUBMITTED
        before = set(record.read_text("utf-8").split()) if record.exists() else set[str]()
        # Without those that were submitted before and are not live: what was deleted stays so.
        kept = [
            pod
            for pod in wish.pods
            if (name := f"{pod.namespace}/{pod.name}") not in before or name in live
        ]
        gone = {pod.group for pod in wish.pods} - {pod.group for pod in kept}
        groups = {name: group for name, group in wish.groups.items() if name not in gone}
        new = only_new(Wish(kept, groups), live)
        with out.status(f"placing {len(new.pods)} sample pods"):
            submitted = await append(ledger, new, basis=basis, progress=lambda _: None)
            names = before | set(live) | {pod.full_name for pod in submitted}
            record.write_text("".join(f"{name}\n" for name in sorted(names)), "utf-8")
            awaited = Awaited(submitted, lambda: None, allocated=True)
            await awaited.wait(ledger, DECIDE_TIMEOUT_S)
    samples = [(pod.namespace, pod.name) for pod in wish.pods]
    pods, whys = await asyncio.to_thread(_outcomes, gateway, samples, max(awaited.revision, basis))
    return Samples(pods, whys, problems, awaited.first_placed_s)


def _outcomes(
    gateway: Gateway, names: list[tuple[str, str]], at_least: int
) -> tuple[list[PodAnswer], dict[str, Why]]:
    """Each pod as it is at that revision or later, and why, for those without a place."""
    pods, whys = list[PodAnswer](), dict[str, Why]()
    query = {"at_least": at_least}
    for namespace, name in names:
        try:
            pod = gateway.ask("pods", namespace, name, answer=PodDetail, query=query).pod
            pods.append(pod)
            if not pod.node:
                whys[pod.uid] = gateway.ask("pods", namespace, name, "why", answer=Why)
        except NotFound:
            continue  # deleted meanwhile
    return pods, whys


def show(out: Console, samples: Samples) -> None:
    """A row for each sample, and a line for each that could not be read."""
    made = table("POD", "PHASE", "NODE", "HOLDS, OR WHY NOT", wraps=("HOLDS, OR WHY NOT",),
                 drops=("PHASE",))  # fmt: skip
    for pod in samples.pods:
        why = samples.whys.get(pod.uid)
        if pod.shares:
            text = shares_words(pod.shares)
        elif why is not None and why.refused is not None:
            text = "; ".join(
                f"{cause.words} ({words.nodes(cause.nodes)})" for cause in why.refused.causes
            )
        else:
            text = why.sentence if why else ""
        made.add_row(
            plain(short_name(pod.namespace, pod.name)), phase(shown_phase(pod)), plain(pod.node),
            plain(text),
        )  # fmt: skip
    out.print(made)
    for problem in samples.problems:
        out.print(plain(problem), style="red", soft_wrap=True)
