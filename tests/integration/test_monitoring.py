"""Dashboards and alert rules use only metrics that exist.

No alert fires in a healthy cluster, and each alert fires on its own problem."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as families

from apportion_schemas import PodBound, SharesAllocated
from tests.support.facts import Facts
from tests.support.helm import CHART
from tests.support.nats import running_bus
from tests.support.pods import ask, pod
from tests.support.polling import until
from tests.support.processes import ServiceProcess

RULES = CHART / "files" / "alerts.yaml"
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
REQUIRED = "APPORTION_REQUIRE_PROMTOOL"
PARTS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SELECTOR = re.compile(r"\b((?:apportion|process)_[a-z_]+)(?:\{([^}]*)\})?")
MINUTES = 24 * 60 + 60


def rules() -> list[dict[str, Any]]:
    """Return the alert rules from the file."""
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def expressions() -> Iterator[str]:
    """Return every query of the alert rules, the panels, and the panels' variables."""
    yield from (rule["expr"] for rule in rules())
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            yield from (target["expr"] for target in panel["targets"])
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield variable["query"]["query"]


def told_names(text: str) -> Iterator[str]:
    """Yield the name of each series that a page of /metrics declares, even if the series has no
    value yet."""
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        yield from (name + part for part in PARTS.get(kind, ()))


async def exposed(tmp_path: Path) -> dict[str, str]:
    """Return each service's metrics after a pod was placed, bound and allocated."""
    places = [f"--{name}={tmp_path / name}" for name in ("state", "run", "cdi")]
    options = {
        "intake": (),
        "agent": ("--node", "n1", "--simulate", "2xT4", "--runs", *places),
        "scheduler": (),
        "binder": (),
        "gateway": ("--listen", "127.0.0.1:0"),
    }
    async with running_bus(tmp_path / "nats") as bus, AsyncExitStack() as stack:
        running = {}
        for verb, words in options.items():
            service = ServiceProcess(verb, bus.server.url_for(verb), *words)
            running[verb] = await stack.enter_async_context(service)
        for service in running.values():
            await service.ready()
        facts = Facts(bus)
        await facts.open()
        await facts.write(pod("a", ask(4_000), namespace="team"))
        await facts.count(PodBound, 1)
        await facts.count(SharesAllocated, 1)

        async def granted() -> bool:
            return (
                "apportion_fleet_allocated_devices{"
                in (await running["gateway"].get("/metrics"))[1]
            )

        await until(granted, "the gateway to have read of the placement")
        return {verb: (await service.get("/metrics"))[1] for verb, service in running.items()}


async def test_every_name_is_told_and_nothing_alarms_in_health(tmp_path: Path) -> None:
    """Every metric and label in rules and dashboards exists, and a healthy hour fires no alert."""
    pages = await exposed(tmp_path)
    names = {name for text in pages.values() for name in told_names(text)}
    labels: dict[str, set[str]] = {}
    for text in pages.values():
        for family in families(text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    assert labels["apportion_fleet_allocated_devices"] == {"namespace", "model"}
    for expression in expressions():
        found = SELECTOR.findall(expression)
        assert found, f"{expression}: asks for nothing of ours"
        for name, chosen in found:
            assert name in names, f"{expression}: no service tells {name}"
            asked = set(re.findall(r"(\w+)\s*[=!]", chosen))
            assert asked <= labels.get(name, asked), f"{expression}: {name} has no such label"
    quiet = [{"expr": "count(ALERTS)", "eval_time": "50m", "exp_samples": []}]
    promtool_test(tmp_path, list(steady(pages)), quiet)


def steady(pages: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield a promtool series for each of these metrics, with the same value for an hour."""
    for job, text in pages.items():
        for family in families(text):
            for sample in family.samples:
                if not sample.name.startswith("apportion_"):
                    continue
                said = sample.labels | {"job": job, "instance": job}
                words = ",".join(f"{key}={json.dumps(value)}" for key, value in said.items())
                yield {"series": f"{sample.name}{{{words}}}", "values": f"{sample.value}+0x60"}


TROUBLE = {
    "ApportionFoldHalted": ('apportion_fold_halted{job="s", instance="i"}', "1+0x{0}"),
    "ApportionFoldBehind": ('apportion_fold_lag{job="s", instance="i"}', "5000+0x{0}"),
    "ApportionLedgerFull": ('apportion_ledger_full{instance="i"}', "1+0x{0}"),
    "ApportionLedgerDrifted": ('apportion_ledger_drifted{instance="i"}', "1+0x{0}"),
    "ApportionSnapshotsWrong": ('apportion_snapshots_forged{instance="i"}', "1+0x{0}"),
    "ApportionLedgerUnanswered": ('apportion_append_total{outcome="unknown"}', "0+1x{0}"),
    "ApportionRestarts": ('apportion_restarts_total{instance="i"}', "0+1x{0}"),
    "ApportionNoScheduler": ("apportion_fold_revision", "1+1x{0}"),
    "ApportionDevicesUnhealthy": ('apportion_fleet_devices{state="unhealthy"}', "1+0x{0}"),
    "ApportionAgentsNotReporting": ("apportion_silent_nodes", "1+0x{0}"),
    "ApportionPodPending": ('apportion_fleet_pending_seconds{namespace="n"}', "0+60x{0}"),
    "ApportionBindingsFail": ('apportion_bindings_total{outcome="failed for now"}', "0+1x{0}"),
}
"""What each alert is about, as it is in that trouble and no other."""


def test_each_alert_speaks_in_its_trouble_and_no_other_does(tmp_path: Path) -> None:
    """Each alert fires on its own problem, and no other alert fires then."""
    assert TROUBLE.keys() == {rule["alert"] for rule in rules()}
    assert 8 <= len(TROUBLE) <= 12
    assert len(DASHBOARDS) == 4  # what people watch: fleet, tenants, scheduler and ledger
    for name, (series, values) in TROUBLE.items():
        series_of = [{"series": series, "values": values.format(MINUTES)}]
        if name != "ApportionNoScheduler":
            series_of.append({"series": "apportion_pending_pods", "values": f"0+0x{MINUTES}"})
        firing = {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{MINUTES - 1}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
        }
        promtool_test(tmp_path, series_of, [firing])


def test_promtool_takes_the_rules() -> None:
    """Prometheus' promtool accepts the names, expressions and templates of the rules."""
    promtool("check", "rules", str(RULES))


def promtool_test(folder: Path, series: list[dict[str, str]], asked: list[dict[str, Any]]) -> None:
    """Check with promtool that the rules give the expected samples for these series.

    Each of `asked` is a query with its time and its expected samples."""
    case = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    path = folder / "case.yaml"
    text = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    path.write_text(yaml.safe_dump(text))
    promtool("test", "rules", str(path))


def promtool(*words: str) -> None:
    """Run promtool. If it is not installed, skip the test, or fail where promtool is required."""
    binary = shutil.which("promtool")
    if binary is None:
        reason = "no promtool; Debian's package prometheus has it"
        (pytest.fail if REQUIRED in os.environ else pytest.skip)(reason)
    done = subprocess.run([binary, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
