"""The reference pages are complete: every option, metric and code that a user can meet is on them.

tests/golden/test_generated.py checks that the pages are current."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest
import yaml
from prometheus_client import CollectorRegistry

from apportion.cli.main import RUN, VERBS
from apportion.cli.usage import CONNECTION
from apportion.core.placement.feasibility.causes import CAUSES
from apportion.runtime.process.metrics import Metrics
from apportion_schemas import RefusalCode
from tests.tidy.tree import ROOT, python_files
from tools import reference

FILES = {path.rpartition("/")[2]: text for path, text in reference.files().items()}
COMMANDS = {each.name: each for each in reference.commands()}


def sections(page: str) -> dict[str, str]:
    """Return the text of each section of a page, by its heading."""
    parts = re.split(r"^##+ (.+)$", FILES[page], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options(command: click.Command) -> set[str]:
    """Return the flags that a command's help shows, except connection options."""
    shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    return {flag for each in shown if each not in CONNECTION for flag in each.opts}


def test_every_verb_is_listed() -> None:
    """Every verb, also one in a group of verbs, has a section with its options, exit codes and
    example."""
    listed = sections("cli.md")
    assert {name.split()[1] for name in COMMANDS} == set(VERBS)
    assert set(listed) == {name for name in COMMANDS if name.split()[1] not in RUN}
    for name, text in listed.items():
        missing = [flag for flag in options(COMMANDS[name].command) if flag not in text]
        assert not missing or name == reference.CONNECTION_TOPIC, name
        assert "```sh\n" in text, name


@pytest.mark.parametrize("service", RUN)
def test_every_option_of_a_service_is_listed(service: str) -> None:
    """Every option of a service is in that service's section, or in the section for all
    services."""
    listed = sections("settings.md")
    text = listed[service] + listed["Every service"]
    assert not [
        flag for flag in options(COMMANDS[f"apportion {service}"].command) if flag not in text
    ]


def test_every_connection_option_is_listed() -> None:
    """The section about connections lists every connection option.

    The verbs leave these options out of their `--help`."""
    text = sections("settings.md")["Connection"]
    assert len(CONNECTION) > 10
    assert not [flag for each in CONNECTION for flag in each.opts if f"`{flag}" not in text]


def test_every_environment_variable_is_listed() -> None:
    """The page of settings has every environment variable that a service or a verb reads."""
    named = {
        node.value
        for path, source in python_files().items()
        if path.startswith("services/")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"APPORTION_[A-Z0-9_]+", node.value)
    }
    assert len(named) > 30
    assert named - set(re.findall(r"APPORTION_[A-Z0-9_]+", FILES["settings.md"])) == (
        reference.NO_VARIABLES
    )


def exported(registry: CollectorRegistry) -> Iterator[str]:
    """Yield the names of our metrics in a registry, as a scrape shows them."""
    for family in registry.collect():
        if family.name.startswith("apportion_"):
            yield family.name + ("_total" if family.type == "counter" else "")


def test_every_metric_is_listed() -> None:
    """The page of metrics lists every metric that services export, and none of them twice.

    It also lists every metric that alerts and dashboards use."""
    names = Counter(re.findall(r"^\| `([\w]+)`<br>", FILES["metrics.md"], re.MULTILINE))
    assert max(names.values()) == 1
    assert set(exported(Metrics().registry)) <= set(names)
    asked = set()
    for path in (ROOT / "deploy").rglob("*"):
        if path.suffix in {".yaml", ".json", ".tpl"}:
            text = path.read_text("utf-8")
            asked |= set(re.findall(r"\b(apportion_[a-z_]+?)(?:_bucket|_sum|_count)?\b", text))
    assert len(asked) > 30
    assert asked <= set(names)


def test_every_refusal_code_is_listed() -> None:
    """Every refusal code has one row with its cause and fix, and one row in the list of filters."""
    codes = {each.value for each in RefusalCode}
    assert {each.value for each in CAUSES} == codes
    for page in ("refusals.md", "scores-and-filters.md"):
        rows = re.findall(r"^\| `([A-Z]\w+)`", FILES[page], re.MULTILINE)
        assert Counter(rows) == Counter(codes), page
    for cause in CAUSES.values():
        assert cause.phrase in FILES["refusals.md"]


def leaves(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all values that the chart's schema allows."""
    for name, own in schema["properties"].items():
        if "properties" in own:
            yield from leaves(own, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_value_of_the_chart_is_listed() -> None:
    """Every value of the Helm chart has one row on the chart's page, except Helm's own value
    `global`."""
    schema = json.loads((ROOT / reference.CHART / "values.schema.json").read_text("utf-8"))
    rows = re.findall(r"^\| `([\w.]+)`<br>", FILES["chart.md"], re.MULTILINE)
    assert Counter(rows) == Counter(set(leaves(schema)) - {"global"})
    values = yaml.safe_load((ROOT / reference.CHART / "values.yaml").read_text("utf-8"))
    assert set(values) == {path.partition(".")[0] for path in rows}
