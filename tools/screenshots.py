"""Take pictures of the console's pages, light and dark, wide and narrow, for `docs/console`.

    python -m tools.screenshots [FOLDER] [--page pods] [--theme dark] [--width 390]

Runs a real `apportion up` with 200 nodes, pods in eight namespaces, a node without power, a cordon
and pending pods, in real Chromium. The pictures are for people: no test compares pixels."""

from __future__ import annotations

import json
import os
import random
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from click import echo
from playwright.sync_api import Browser

from tests.support.browser.chromium import NARROW, WIDE, opened, running_browser, visit
from tests.support.browser.pages import navigation
from tests.support.browser.small_png import small
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
  annotations: {{nvidia.com/use-gputype: {model}}}
spec:
  schedulerName: apportion
  containers:
  - name: main
    image: x
    resources: {{limits: {limits}}}
"""
PRICES = (
    'currency = "EUR"\n[models]\n"*H100*" = 2.40\n"*A100*" = 1.30\n"*L40S*" = 0.90\n"*" = 0.40\n'
)
LOST = "h100-13"
THEMES = ("light", "dark")
WIDTHS = (WIDE[0], NARROW[0])
NAMES = (
    *navigation(), "fleet-card", "fleet-namespaces", "fleet-past", "pod", "pod-waiting", "diff",
)  # fmt: skip
"""One picture of each page, and some of what a page shows for a longer address."""


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


def happen(up: Standalone) -> None:
    """Create the cluster in the pictures: two waves of pods, a lost node, a cordoned node, ended
    pods."""
    up.run("submit", "--wait", "-f", "-", stdin=manifests(1).encode())
    reason = ("--reason", "PSU replaced on Monday, ticket INF-2291")
    assert up.run("cordon", "h100-7", *reason).returncode == 0
    ended = [f"{pod['namespace']}/{pod['name']}" for pod in up.json("get", "pods")["items"][:25]]
    up.run("delete", *ended)
    for device in up.json("get", "devices", "--node", LOST)["items"]:
        up.run("simulate", "fail", device["device"], "--reason", "node lost power (r15, PDU B)")
    up.run("submit", "--wait", "--timeout", "20", "-f", "-", stdin=manifests(2).encode())


def pages(up: Standalone) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each picture."""
    pods = up.json("get", "pods")["items"]
    runs = next(pod for pod in reversed(pods) if pod["namespace"] == "vision" and pod["node"])
    waits = next(pod for pod in pods if pod["phase"] == "pending" and pod["refused_revision"])
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
    }
    yield from ((name, addresses.get(name, f"#/{name}")) for name in NAMES)


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
                    path = asked.folder / f"{name}-{size[0]}-{theme}.png"
                    path.write_bytes(small(page.screenshot()))
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
        rows = [f'- {{node: {name}-{at}, devices: "{spec}"}}'
                for name, count, spec in POOLS for at in range(1, count + 1)]  # fmt: skip
        fleet.write_text("\n".join(["nodes:", *rows]) + "\n")
        os.environ["APPORTION_PRICES"] = str(prices)
        data = Path(scratch) / "data"
        with Standalone(data, "--fleet", str(fleet), "--no-samples") as up:
            up.up()
            happen(up)
            base = str(json.loads((data / "connection.json").read_text())["gateway"])
            shown = [each for each in pages(up) if each[0] in (asked.page or NAMES)]
            with running_browser() as browser:
                take(browser, base, shown, asked)


if __name__ == "__main__":
    main()
