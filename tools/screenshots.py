"""Take pictures of the console's pages, light and dark, wide and narrow, for `docs/console`.

    python -m tools.screenshots [FOLDER] [--page pods] [--theme dark] [--width 390]

Runs a real `apportion up` with 200 nodes, pods in eight namespaces, queues, gangs, a node without
power, a cordon and pending pods, in real Chromium. The picture of forecasts needs hours of history,
so it is of a gateway whose ledger a test has written. The pictures are for people: no test compares
pixels."""

from __future__ import annotations

import json
import os
import random
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path

from click import echo
from PIL import Image
from playwright.sync_api import Browser

from tests.integration.console.test_starts import past, served
from tests.support.browser.chromium import NARROW, WIDE, opened, running_browser, visit
from tests.support.browser.pages import navigation
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "console"
POOLS = (("h100", 80, "8xH100-80GB"), ("a100", 60, "8xA100-40GB"), ("l40s", 30, "8xL40S-48GB"),
         ("a100-mig", 15, "4xA100-40GB:mig"), ("t4", 15, "4xT4"))  # fmt: skip
SHAPES = (
    # model, GPUs, MiB of each (0: whole), pods, namespace, names
    ("H100", 8, 0, 34, "pretrain", ("moe-16b", "dense-70b", "ctx-ext")),
    ("H100", 4, 0, 40, "research", ("rlhf-sweep", "ablate", "distill")),
    ("H100", 1, 40_000, 120, "serving", ("chat-70b", "embed", "rerank")),
    ("A100", 2, 0, 60, "genomics", ("fold", "variant")),
    ("A100", 1, 10_000, 110, "notebooks", ("nb-mei", "nb-aylin")),
    ("L40S", 1, 24_000, 120, "vision", ("ocr-train", "depth")),
    ("L40S", 2, 0, 40, "speech", ("asr-large", "diarise")),
    ("T4", 1, 7_000, 70, "ci", ("cuda-test",)),
)
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: {namespace}
  annotations: {{nvidia.com/use-gputype: {model}, volcano.sh/queue-name: {namespace}}}
spec:
  schedulerName: apportion
  containers:
  - name: main
    image: x
    resources: {{limits: {limits}}}
"""
RACK, NODES_OF_RACK = "example.com/rack", 10
QUEUES = (
    # name, its parent, GPUs that it deserves, limit of shares
    ("training", "", 600, 0), ("pretrain", "training", 360, 0), ("research", "training", 240, 0),
    ("products", "", 440, 0), ("serving", "products", 240, 0), ("vision", "products", 140, 0),
    ("speech", "products", 60, 0), ("genomics", "", 200, 0), ("notebooks", "", 180, 0),
    ("ci", "", 60, 90),
)  # fmt: skip
GANGS = (("cryo-em", 4, 4), ("protein-lm", 16, 16), ("atlas", 4, 3))
"""Gangs of pods with 8 A100s: name, required pods in one rack, existing pods. The second does not
fit into a rack, and the third lacks a pod."""
GANG = """\
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {{name: {name}, namespace: genomics}}
spec:
  minMember: {least}
  queue: genomics
  topologyConstraint: {{requiredTopologyLevel: {RACK}}}
"""
PRICES = (
    'currency = "EUR"\n[models]\n"*H100*" = 2.40\n"*A100*" = 1.30\n"*L40S*" = 0.90\n"*" = 0.40\n'
)
LOST = "h100-13"
THEMES = ("light", "dark")
WIDTHS = (WIDE[0], NARROW[0])
NAMES = (
    *navigation(), "fleet-card", "fleet-namespaces", "fleet-past", "pod", "pod-waiting", "diff",
    "queues", "gang", "gang-waiting", "lost", "forecasts",
)  # fmt: skip
"""One picture of each page, and some of what a page shows for a longer address. The last
one is of another gateway."""


def manifests(seed: int) -> str:
    """Return the manifests of one wave of random pods."""
    chance = random.Random(seed)
    pods = []
    for model, cards, memory_mib, count, namespace, names in SHAPES:
        for _ in range(count):
            limits = {"nvidia.com/gpu": cards} | (
                {"nvidia.com/gpumem": memory_mib} if memory_mib else {}
            )
            name = f"{chance.choice(names)}-{chance.randrange(16**5):05x}"
            pods.append(POD.format(name=name, namespace=namespace, model=model, limits=limits))
    chance.shuffle(pods)
    return "---\n".join(pods)


def queues_and_gangs() -> str:
    """Return the manifests of the queues and gangs."""
    found = []
    for name, parent, deserved, limit in QUEUES:
        spec = {"parent": parent or "root", "deserved": {"nvidia.com/gpu": deserved}}
        spec |= {"capability": {"nvidia.com/gpu": limit}} if limit else {}
        queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
        found.append(json.dumps(queue | {"metadata": {"name": name}, "spec": spec}))
    for name, least, count in GANGS:
        found.append(GANG.format(name=name, least=least, RACK=RACK))
        for number in range(count):
            pod = POD.format(name=f"{name}-{number}", namespace="genomics", model="A100",
                             limits={"nvidia.com/gpu": 8})  # fmt: skip
            found.append(pod.replace("annotations: {", f"annotations: {{pod-group-name: {name}, "))
    return "\n---\n".join(found)


def happen(up: Standalone) -> None:
    """Create the cluster in the pictures: two waves of pods, a lost node, a cordoned node, ended
    pods."""
    up.run("submit", "--wait", "-f", "-", stdin=queues_and_gangs().encode())
    up.run("submit", "--wait", "-f", "-", stdin=manifests(1).encode())
    last(up, minutes=2)
    reason = ("--reason", "PSU replaced on Monday, ticket INF-2291")
    assert up.run("cordon", "h100-7", *reason).returncode == 0
    single = [pod for pod in up.json("get", "pods")["items"] if pod["namespace"] != "genomics"]
    up.run("delete", *(f"{pod['namespace']}/{pod['name']}" for pod in single[:25]))
    for device in up.json("get", "devices", "--node", LOST)["items"]:
        up.run("simulate", "fail", device["device"], "--reason", "node lost power (r15, PDU B)")
    up.run("submit", "--wait", "--timeout", "20", "-f", "-", stdin=manifests(2).encode())
    last(up, minutes=4)


def last(up: Standalone, minutes: int) -> None:
    """Wait until the reports cover so many minutes, their steps."""

    def covered() -> bool:
        report = up.json("report", "lost")
        begin, end = (datetime.fromisoformat(report[key]) for key in ("begins", "to"))
        return end - begin > timedelta(minutes=minutes)

    wait_until(covered, f"reports about {minutes} minutes", timeout_s=300, interval_s=5)


def pages(up: Standalone) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each picture."""
    pods = up.json("get", "pods")["items"]
    runs = next(pod for pod in reversed(pods) if pod["namespace"] == "vision" and pod["node"])
    waits = next(pod for pod in reversed(pods) if pod["phase"] == "pending" and not pod["group"])
    failed = [mark for mark in up.run("tail", "--from", "1", "--no-follow").stdout.splitlines()
              if f"of {LOST} failed" in mark]  # fmt: skip
    when = int(failed[0].split()[0].replace(",", ""))
    addresses = {
        "fleet-card": f"#/fleet?card={LOST}:2",
        "fleet-namespaces": "#/fleet?by=namespace",
        "fleet-past": f"#/fleet?at={when - 1}",
        "pod": f"#/pod/{runs['namespace']}/{runs['name']}",
        "pod-waiting": f"#/pod/{waits['namespace']}/{waits['name']}",
        "whatif": "#/whatif?lose=a100-3,l40s-2",
        "events": f"#/events?rev={when}",
        "diff": f"#/events?diff={when - 30},{when + 40}",
        "gang": f"#/pod/genomics/{GANGS[0][0]}-0",
        "gang-waiting": f"#/pod/genomics/{GANGS[1][0]}-0",
        "lost": "#/reports",
    }
    yield from ((name, addresses.get(name, f"#/{name}")) for name in NAMES[:-1])


def take(browser: Browser, base: str, shown: list[tuple[str, str]], asked: Namespace) -> None:
    """Take every requested picture, at each requested width and theme."""
    for theme in asked.theme or THEMES:
        for size in (each for each in (WIDE, NARROW) if each[0] in (asked.width or WIDTHS)):
            with opened(browser, base, size=size, theme=theme) as page:
                for name, address in shown:
                    visit(page, address)
                    page.wait_for_selector("#t-hist:visible")
                    page.wait_for_selector(".loading", state="hidden")
                    page.wait_for_function("document.fonts.status === 'loaded'")
                    if name == "lost":
                        page.locator("section:has(> #lost)").evaluate("it => it.scrollIntoView()")
                    # Not what surrounds forecasts: their gateway has no scheduler.
                    shot = page.locator(".page") if name == NAMES[-1] else page
                    image = Image.open(BytesIO(shot.screenshot())).convert("RGB")
                    path = asked.folder / f"{name}-{size[0]}-{theme}.png"
                    # 256 colours, without a visible difference
                    small = image.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=1)
                    small.save(path, optimize=True)
                    echo(f"{path.name}: {path.stat().st_size // 1024} KiB")


def arguments() -> ArgumentParser:
    """Return the parser of the command line. By default, every picture is taken."""
    parser = ArgumentParser("python -m tools.screenshots", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, metavar="FOLDER",
                        help="where the pictures go (docs/console)")  # fmt: skip
    parser.add_argument("--page", action="append", choices=NAMES, help="only this one")
    parser.add_argument("--theme", action="append", choices=THEMES, help="only in this one")
    parser.add_argument("--width", action="append", type=int, choices=WIDTHS, help="only so wide")
    return parser


def main() -> None:
    """Run `apportion up`, and take the pictures."""
    asked = arguments().parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        fleet, prices = Path(scratch) / "fleet.yaml", Path(scratch) / "prices.toml"
        prices.write_text(PRICES)
        rows = [
            f'- {{node: {name}-{at}, devices: "{spec}", '
            f"labels: {{{RACK}: {name}-r{1 + (at - 1) // NODES_OF_RACK}}}}}"
            for name, count, spec in POOLS for at in range(1, count + 1)
        ]  # fmt: skip
        fleet.write_text("\n".join(["nodes:", *rows]) + "\n")
        os.environ["APPORTION_PRICES"] = str(prices)
        data = Path(scratch) / "data"
        asked_for = asked.page or NAMES
        with Standalone(data, "--fleet", str(fleet), "--no-samples") as up:
            up.up()
            happen(up)
            base = str(json.loads((data / "connection.json").read_text())["gateway"])
            shown = [each for each in pages(up) if each[0] in asked_for]
            with running_browser() as browser:
                take(browser, base, shown, asked)
        if NAMES[-1] in asked_for:
            # The gateway has learned enough when it forecasts a time. An unknown median is "".
            with (
                served(Path(scratch) / "past", past, r'"median": ?"2') as base,
                running_browser() as browser,
            ):
                take(browser, base, [(NAMES[-1], "#/waiting")], asked)


if __name__ == "__main__":
    main()
