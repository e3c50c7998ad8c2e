"""Tests of the Python package `apportion.lab`, which users import to study a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest

import apportion.lab
from apportion.lab import (
    Cluster,
    FleetInvalid,
    Otherwise,
    Pods,
    TraceInvalid,
    WishInvalid,
    compare,
    compare_policies,
    numbered_nodes,
    pack,
    read_fleet,
    read_manifests,
    read_trace,
    read_trace_nodes,
    record,
    replay,
    rows,
    shuffled,
    slices,
)
from apportion.runtime.ledger.archive import ArchiveWriter
from tests.support.fleet import rack
from tests.support.pods import cards, pod
from tests.support.virtual_ledger import VirtualLedger
from tests.tidy.tree import ROOT

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "lab" / "packing.ipynb"
HOUR = 3600.0


def run(notebook: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run all code of a notebook in this folder, and return the names that it defines."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            exec(compile(source, cell["id"], "exec"), names)  # noqa: S102 - our own
    return names


def test_every_name_that_is_exported_is_there() -> None:
    """Every name that the lab exports exists. Any other name raises an error that lists the
    exported ones."""
    for name in apportion.lab.__all__:
        assert getattr(apportion.lab, name) is not None
    with pytest.raises(AttributeError, match=r"has no 'Clutser'; it has .*Cluster"):
        _ = apportion.lab.Clutser


def test_the_notebook_makes_the_figure_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example notebook runs. Its results equal those that the test computes without the
    notebook."""
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    names = run(NOTEBOOK, NOTEBOOK.parent, monkeypatch)
    table = {row["policy"]: row for row in names["table"]}
    assert list(table) == ["price", "fgd", "bestfit", "binpack", "spread"]
    nodes = shuffled(read_trace_nodes(NOTEBOOK.parent / "nodes.csv"))
    drafts = sorted(read_trace(NOTEBOOK.parent / "pods.csv"), key=lambda draft: draft.name)
    again = pack(nodes, [draft.shape for draft in drafts], "spread")
    assert table["spread"]["allocated_percent"] == round(again.allocated_percent, 2)
    assert again.points[-1].allocated_percent == pytest.approx(again.allocated_percent)
    assert table["price"]["allocated_percent"] > table["spread"]["allocated_percent"]
    assert names["figure"]._repr_svg_().count("<polyline") == len(table)


def test_a_fleet_and_manifests_are_decided(tmp_path: Path) -> None:
    """The lab places the pods of manifests on a fleet of nodes. A user can then list the objects of
    that cluster and plan changes to it."""
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("node,devices\nbig-1,8xH100-80GB\nsmall-1,4xT4\n")
    cluster = Cluster(read_fleet(fleet), policy="binpack")
    wanted = read_manifests(EXAMPLES / "pods" / "hami.yaml", EXAMPLES / "too-large.yaml")
    assert wanted.problems == []
    found = {row["pod"]: row for row in cluster.submit(wanted)}
    busy = found["gpu-pod"]["node"]
    assert found["gpu-pod"]["devices"]
    assert found["too-large"]["node"] == ""
    assert "2 nodes" in found["too-large"]["sentence"]
    assert {row["node"] for row in cluster.nodes()} == {"big-1", "small-1"}
    assert sum(len(row["holders"]) for row in cluster.devices()) == 1
    (other,) = {"big-1", "small-1"} - {busy}
    answer = cluster.plan(lose=[busy])
    assert [(row["name"], row["node"]) for row in rows(answer.moved)] == [("gpu-pod", other)]
    assert cluster.plan(wanted).pods[0].outcome == "unchanged"
    cluster.end("default/gpu-pod")
    assert [row["name"] for row in cluster.pods()] == ["too-large"]


def test_files_are_named_by_texts_as_by_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab accepts file names as strings and as `Path` objects."""
    monkeypatch.chdir(NOTEBOOK.parent)
    assert read_trace("pods.csv") == read_trace(Path("pods.csv"))
    assert read_trace_nodes("nodes.csv") == read_trace_nodes(Path("nodes.csv"))
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("node,devices\nbig-1,8xH100-80GB\n")
    assert read_fleet(str(fleet)) == read_fleet(fleet)
    with pytest.raises(FleetInvalid, match="No such file"):
        read_fleet("nothing.csv")


def test_a_cluster_of_a_state_is_a_copy() -> None:
    """A cluster made from a state is a copy. Changing the cluster does not change the state."""
    one = Cluster(numbered_nodes("n", 1, ["1xT4"]))
    other = Cluster(state=one.state)
    other.submit(Pods(read_manifests(EXAMPLES / "pods" / "hami.yaml").pods))
    assert other.pods()
    assert not one.pods()


def lived() -> VirtualLedger:
    """Return a ledger with one GPU and two pods, each of which used the GPU for an hour."""
    ledger = VirtualLedger()
    ledger.write(rack("n1", 1))
    for name in ("a", "b"):
        ledger.submit(pod(name, cards()), runs_s=HOUR)
    ledger.settle()
    ledger.until(3 * HOUR)
    return ledger


def test_an_archive_is_recorded_and_courses_are_compared(tmp_path: Path) -> None:
    """The lab reads an archive and replays it with different fleets and policies. Its comparison
    has one row per replay, and one for what really happened."""
    path = tmp_path / "ledger.jsonl"
    with ArchiveWriter(path, stream="APPORTION", created="2026-01-01T00:00:00Z") as archive:
        for each in lived().records:
            archive.add(each)
    recorded = record(path)
    found = compare(recorded, {"as it was": Otherwise(), "two": Otherwise(fleet=tuple(read_two()))})
    waited = {row["course"]: row["gpu_hours_waited"] for row in found}
    assert waited == {"happened": 1.0, "as it was": 1.0, "two": 0.0}
    assert [row["course"] for row in compare_policies(recorded, ["spread", "binpack"])] == [
        "happened",
        "spread",
        "binpack",
    ]
    over_time = slices(replay(recorded, Otherwise()))
    assert {row["course"] for row in over_time} == {"happened", "replayed"}
    assert all(isinstance(value, int | float | str) for row in over_time for value in row.values())
    later = record(path, begin="3")
    assert later.span.from_revision == 2


def read_two() -> list[Any]:
    return numbered_nodes("m", 2, ["1xA100-80GB"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model\nn1,many,1,1,T4\n", "line 2.cpu_milli"),
        ("name\nn1\n", "line 2.sn"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, text: str, says: str) -> None:
    """The error about an unreadable trace has its line and column. The error about an unknown
    policy lists the valid ones."""
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(TraceInvalid, match=says):
        read_trace_nodes(path)
    with pytest.raises(TraceInvalid, match="No such file"):
        read_trace(tmp_path / "nothing.csv")
    with pytest.raises(WishInvalid, match="use one of price"):
        Cluster(policy="best")
