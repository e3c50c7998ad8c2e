"""The page of day one tells the truth: its commands do what they promise on a real `up`.

A promise is a row of the page's table; a command is what stands in it as code."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helm import rendered
from tests.support.polling import wait_until
from tests.support.standalone import Standalone
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "get-started" / "laptop.md").read_text("utf-8")
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|", re.MULTILINE)
SHOWS = {
    "doctor": "durability",
    "top": "MEMORY GiB",
    "why": "allocated on ascend-1",
    "who": "default/ascend-pod",
    "diff": "default/ascend-pod",
    "plan": "default/too-large fits on added-1",
    "tail": "NodeReported",
    "cordon": "cordoned at revision",
    "drain": "no pods are left on t4-1",
    "uncordon": "t4-1 uncordoned at revision",
    "shadow": "no pods of another scheduler",
    "report": "gpu_hours",
}
"""What each verb must say here, beside ending well."""


def promised() -> dict[int, list[str]]:
    """The commands of each promise, by its number."""
    return {int(row[1]): re.findall(r"`([^`]+)`", row[2]) for row in ROW.finditer(PAGE)}


def charts() -> Iterator[list[str]]:
    """The settings of every `helm install` of the page."""
    for line in re.findall(r"helm (?:install|upgrade) [^`\n]+", PAGE):
        yield [word for name in re.findall(r"--set (\S+)", line) for word in ("--set", name)]


def test_every_promise_has_its_command() -> None:
    """Ten of them."""
    found = promised()
    assert list(found) == list(range(1, 11))
    assert all(found.values())


def test_each_command_shows_what_it_promises(tmp_path: Path) -> None:
    """In the order of the page, on the fleet and the pods that a newcomer has."""
    said: dict[str, str] = {}
    with Standalone(tmp_path / "data") as up:
        up.up()
        # The page asks what was a second ago; a fast machine is there before a pod was.
        wait_until(
            lambda: SHOWS["who"] in up.run("who", "ascend-1", "--at", "-1s").stdout,
            "a second since the first placement",
        )
        for command in (each for row in promised().values() for each in row):
            words = shlex.split(command)
            if words[0] == "apportion":
                done = up.run(*words[1:])
                assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
                said[words[1]] = said.get(words[1], "") + done.stdout
    assert said.keys() == SHOWS.keys()
    for verb, part in SHOWS.items():
        assert part in said[verb], f"{verb} says no {part!r}:\n{said[verb]}"


def test_the_chart_takes_the_settings_of_the_page() -> None:
    """Each makes what the page says that it makes."""
    found = [rendered(*words) for words in charts()]
    assert len(found) >= 3
    assert any("--simulate=8xH100-80GB" in each for each in found)
    assert any("kind: PrometheusRule" in each for each in found)
    assert any("pods/binding" not in each for each in found)
