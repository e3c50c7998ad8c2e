"""`replay` simulates the events of a real ledger again, on the recorded fleet or on another one."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.cli.test_plan import pod
from tests.support.polling import wait_until
from tests.support.standalone import Standalone

pytestmark = pytest.mark.slow
FLEET = "node,devices\nbig-1,1xH100-80GB\n"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Provide a fleet of one GPU. One pod uses it for a while, and a second pod waits until the
    first ends."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "fleet.csv").write_text(FLEET)
    options = ("--no-samples", "--fleet", str(folder / "fleet.csv"))
    with Standalone(folder / "data", *options) as running:
        running.up()
        running.json("submit", "-f", "-", "--wait", stdin=pod("first", 80_000).encode())
        running.json("submit", "-f", "-", "--wait", stdin=pod("second", 80_000).encode(), code=1)
        running.json("delete", "first")
        wait_until(lambda: _node(running, "second"), "the second to have its place")
        yield running
    running.nothing_left()


def _node(up: Standalone, name: str) -> str:
    [found] = [row for row in up.json("get", "pods")["items"] if row["name"] == name]
    return str(found["node"])


def _waits(up: Standalone) -> tuple[float, float]:
    """Return two totals of the two pods' waiting times, in seconds.

    The first is as recorded. The second is what is expected if the scheduler placed each pod
    instantly."""
    lines = up.run("tail", "--from", "1", "--no-follow", "--json").stdout.splitlines()
    events = [json.loads(line)["event"] for line in lines]

    def at_s(kind: str) -> list[float]:
        times = [each["time"] for each in events if each["type"] == f"apportion.dev/{kind}"]
        return [datetime.fromisoformat(time).timestamp() for time in times]

    (came, second_came), (had, second_had) = at_s("PodSubmitted"), at_s("PodPlaced")
    (gone,) = at_s("PodGone")
    return had - came + second_had - second_came, came + (gone - had) - second_came


def test_as_it_was(up: Standalone) -> None:
    """A replay without changes gives the recorded waiting time and adds nothing to the ledger."""
    before = up.json("get", "nodes")["revision"]
    answer = up.json("replay")
    assert up.json("get", "nodes")["revision"] == before
    happened, replayed = answer["happened"], answer["replayed"]
    assert answer["changes"] == []
    for course in (happened, replayed):
        assert (course["arrived"], course["placed"], course["unplaced"]) == (2, 2, 0)
        assert course["devices_peak"] == 1
    waited_s, wait_replayed_s = _waits(up)
    assert replayed["gpu_hours_waited"] > 0
    assert replayed["gpu_hours_waited"] / happened["gpu_hours_waited"] == pytest.approx(
        wait_replayed_s / waited_s, rel=0.05
    )
    assert answer["span"]["to_revision"] == before


def test_another_fleet_saves_the_waiting(up: Standalone, tmp_path: Path) -> None:
    """With a second GPU, added with --add or as part of another --fleet, no pod waits."""
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("node,devices\nnew-1,2xH100-80GB\n")
    for words in (("--add", "1xH100-80GB"), ("--fleet", str(fleet))):
        answer = up.json("replay", *words)
        assert answer["replayed"]["gpu_hours_waited"] < answer["happened"]["gpu_hours_waited"] / 2
        assert answer["gpu_hours_waited_saved"] > 0
        assert answer["gpus_saved"] == -1


def test_out_of_the_archive(up: Standalone, tmp_path: Path) -> None:
    """`replay` reads an archive file without a server, and refuses a truncated archive."""
    archive = tmp_path / "all.jsonl"
    assert up.run("ledger", "archive", str(archive)).returncode == 0
    told = up.json("replay", "--archive", str(archive))
    assert (told["happened"]["arrived"], told["replayed"]["placed"]) == (2, 2)
    archive.write_text(archive.read_text()[:-100])
    assert up.run("replay", "--archive", str(archive)).returncode == 1


def test_table_and_chart(up: Standalone, tmp_path: Path) -> None:
    """`replay` prints a readable table, and writes a chart that loads nothing from another host."""
    page, picture = tmp_path / "day.html", tmp_path / "day.svg"
    said = up.run("replay", "--policy", "spread", "--chart", str(page)).stdout
    assert "GPU-hours pending" in said
    assert "policy spread" in said
    up.run("replay", "--chart", str(picture))
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")  # noqa: S314 - our own
    for text in (page.read_text(), picture.read_text()):
        assert "ACTUAL" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", "noon"), "--from: 'noon' is not a time"),
        (("--from", "999999"), "--from is revision 999999, but the ledger has 1 to"),
        (("--from", "-1m", "--to", "-2m"), "--to is not after --from"),
        (("--lose", "big-9"), "no node or device 'big-9'"),
        (("--chart", "day.pdf"), "must end with .html or .svg"),
        (("--policy", "best"), "'best' is not one of"),
    ],
)
def test_what_makes_no_sense_is_refused(up: Standalone, words: tuple[str, ...], says: str) -> None:
    """`replay` refuses options that make no sense, with exit code 2 and an error that names the
    problem."""
    done = up.run("replay", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
