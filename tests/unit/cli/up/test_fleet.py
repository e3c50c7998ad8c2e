"""Tests of how `up` stores its simulated nodes in its data folder, for the next run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner

from apportion.cli.exits import Unreachable
from apportion.cli.up import main as up
from apportion.cli.up.fleet import (
    KEPT,
    Fleet,
    Wanted,
    keep,
    kept,
    nodes_file,
    of_file,
    of_nodes,
    refusal,
    without_samples,
)
from apportion.runtime.files.fleets import numbered_nodes, read_fleet
from tests.support.golden import Golden

NODES = "nodes:\n- {node: a, devices: 1xT4}\n- {node: b, devices: 2xT4}\n"
SPECS = ("1xT4", "4xA100-40GB:mig+2xT4")


def written(path: Path, text: str = NODES) -> Fleet:
    """Write the text to a fleet file, and return the fleet that it describes."""
    path.write_text(text)
    return of_file(path, str(path))


def test_a_new_folder_takes_any_fleet(tmp_path: Path) -> None:
    """A new data folder accepts any fleet. `up` stores a copy, which remains if the fleet file is
    deleted."""
    fleet = written(tmp_path / "fleet.yml")
    data = tmp_path / "data"
    data.mkdir()
    assert (refusal(data, fleet), kept(data)) == ("", None)
    keep(data, fleet)
    (tmp_path / "fleet.yml").unlink()
    assert kept(data) == fleet
    assert [node.name for node in read_fleet(nodes_file(data))] == ["a", "b"]


def test_the_same_nodes_are_the_same_fleet(tmp_path: Path) -> None:
    """`up` accepts a fleet file that has the same nodes as the stored fleet, even if the name,
    order or format differs."""
    first = written(tmp_path / "one.yaml")
    keep(tmp_path, first)
    for name, text in (
        ("copy.yaml", NODES),
        ("remark.yaml", f"# mine\n{NODES}"),
        ("order.yaml", "nodes:\n- {node: b, devices: 2xT4}\n- {node: a, devices: 1xT4}\n"),
        ("form.csv", "sn,gpu,model\na,1,T4\nb,2,T4\n"),
    ):
        fleet = written(tmp_path / name, text)
        assert refusal(tmp_path, fleet) == "", name
        keep(tmp_path, fleet)
        assert kept(tmp_path) == first, name


def test_a_fleet_of_rows_is_kept_with_all_that_they_say(tmp_path: Path) -> None:
    """The stored copy of a CSV fleet has all fields of the CSV file."""
    path = tmp_path / "fleet.csv"
    path.write_text("sn,gpu,model,cpu_milli\na,2,T4,8000\nb,0,,\n")
    data = tmp_path / "data"
    data.mkdir()
    keep(data, of_file(path, "mine"))
    assert read_fleet(nodes_file(data)) == read_fleet(path)


def test_files_of_a_person_in_the_folder_stay_as_they_are(tmp_path: Path) -> None:
    """If a user has put fleet files into the data folder, `up` neither reads nor changes them."""
    mine = {name: f"my {name}" for name in ("fleet", "fleet.csv", "fleet.yaml", "nodes.yaml")}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    assert kept(tmp_path) is None
    keep(tmp_path, of_nodes([("a", "1xT4")], "1xT4"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()} == mine


def test_nodes_that_somebody_took_away_are_kept_again(tmp_path: Path) -> None:
    """If the stored copy of the nodes was deleted, the next run stores it again."""
    fleet = written(tmp_path / "one.yaml")
    keep(tmp_path, fleet)
    nodes_file(tmp_path).unlink()
    assert refusal(tmp_path, fleet) == ""
    keep(tmp_path, fleet)
    assert kept(tmp_path) == fleet


def test_the_same_file_with_other_nodes_is_refused_with_what_differs(
    golden: Golden, tmp_path: Path
) -> None:
    """If the fleet file now has other nodes, `up` refuses it. The error lists the differences and
    names the options to use."""
    path = tmp_path / "mine.yaml"
    keep(tmp_path, written(path))
    said = refusal(tmp_path, written(path, NODES.replace("node: a", "node: c").replace("2x", "4x")))
    for part in ("missing: a", "new: c", "changed: b", "--fleet", "--gpus"):
        assert part in said
    golden({"a is c now, and b has four cards": said})


def test_words_on_the_command_line_are_a_fleet_file(tmp_path: Path) -> None:
    """Device descriptions on the command line and a fleet file with the same nodes give the same
    fleet."""
    made = numbered_nodes("node-{}", 3, SPECS)
    fleet = of_nodes([(f"node-{i + 1}", SPECS[i % 2]) for i in range(3)], "3 x T4")
    keep(tmp_path, fleet)
    assert read_fleet(nodes_file(tmp_path)) == made


def test_gpus_of_a_machine_are_known_by_name(golden: Golden, tmp_path: Path) -> None:
    """If a ledger was started with the machine's own GPUs, `up` refuses to continue it with another
    fleet. The error names the option with which the ledger was started."""
    keep(tmp_path, Fleet("the GPUs of vm"))
    assert refusal(tmp_path, Fleet("the GPUs of vm")) == ""
    begun = refusal(tmp_path, written(tmp_path / "one.yaml"))
    assert "--gpus local" in begun
    other = tmp_path / "other"
    other.mkdir()
    keep(other, written(tmp_path / "one.yaml"))
    golden({
        "begun with the GPUs of vm, a file is given": begun,
        "begun with a file, --gpus is given": refusal(other, Fleet("the GPUs of vm")),
    })  # fmt: skip


def test_what_is_kept_and_cannot_be_read_is_told(golden: Golden, tmp_path: Path) -> None:
    """If the stored fleet is unreadable, `up` refuses to continue and names the path of the stored
    fleet."""
    keep(tmp_path, written(tmp_path / "one.yaml"))
    nodes_file(tmp_path).write_text("nodes: 7\n")
    said = refusal(tmp_path, written(tmp_path / "one.yaml"))
    assert "kept-fleet/nodes.yaml" in said
    golden({"nodes: 7": said})


def test_a_ledger_begun_without_samples_stays_without(tmp_path: Path) -> None:
    """The first run on a data folder determines whether its ledger has sample pods."""
    fleet = of_nodes([("a", "1xT4")], "1xT4")
    for begun, later in ((False, True), (True, False)):
        data = tmp_path / f"{begun}"
        data.mkdir()
        assert not without_samples(data)
        keep(data, fleet, samples=begun)
        keep(data, fleet, samples=later)
        assert without_samples(data) is not begun


def test_what_a_killed_run_left_says_nothing_of_samples(tmp_path: Path) -> None:
    """If `up` is killed before it has stored the whole fleet, the next run may choose again whether
    there are sample pods."""
    fleet = of_nodes([("a", "1xT4")], "1xT4")
    keep(tmp_path, fleet, samples=False)
    (tmp_path / KEPT / "name").unlink()
    keep(tmp_path, fleet)
    assert not without_samples(tmp_path)


def test_up_without_a_fleet_goes_on_with_the_one_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without options, `up` uses the stored fleet. In a new data folder it uses the sample
    fleet."""
    begun: list[tuple[Fleet, tuple[str, ...]]] = []

    def begin(wanted: Wanted, _fork_server: object) -> int:
        begun.append((wanted.fleet, wanted.agent))
        return 0

    monkeypatch.setattr("apportion.cli.up.standalone.stand", begin)
    monkeypatch.setattr("apportion.cli.up.fork_server.ForkServer.start", lambda _self: None)
    fleet = written(tmp_path / "one.yaml")
    data = tmp_path / "data"
    data.mkdir()

    def run(*options: str) -> tuple[Fleet, tuple[str, ...]]:
        done = CliRunner().invoke(up.command, list(options))
        assert not isinstance(done.exception, ClickException), done.output
        return begun.pop()

    samples = of_file(up.FLEET, up.SAMPLES_FLEET)
    assert run("--data", str(data))[0] == samples
    keep(data, fleet)
    found, agent = run("--data", str(data))
    assert (found, agent[:2]) == (fleet, ("--fleet", str(nodes_file(data))))
    monkeypatch.setenv("APPORTION_DATA", str(data))
    assert run()[0] == fleet
    assert run("--ephemeral")[0] == samples


def no_folder(data: Path) -> None:
    """Put a file where `up` expects the folder of the stored fleet."""
    (data / KEPT).write_text("mine")


def a_folder_for_its_name(data: Path) -> None:
    """Put a folder where `up` expects the file with the fleet's name."""
    (data / KEPT / "name").mkdir(parents=True)


def no_text(data: Path) -> None:
    """Store a fleet name that is not UTF-8."""
    (data / KEPT).mkdir()
    (data / KEPT / "name").write_bytes(b"\xff")


@pytest.mark.parametrize("spoil", [no_folder, a_folder_for_its_name, no_text])
def test_up_says_where_what_is_kept_cannot_be_read(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """If the stored fleet is unreadable, `up` refuses before it starts anything. The error has the
    path and a fix."""
    spoil(tmp_path)
    tried = CliRunner().invoke(up.command, ["--data", str(tmp_path)])
    assert tried.exit_code == Unreachable.exit_code
    for part in (
        f"cannot read the stored fleet of the ledger in {tmp_path / KEPT} (",
        "choose another --data",
    ):
        assert part in tried.output
    with pytest.raises(Unreachable, match="cannot read"):
        refusal(tmp_path, of_nodes([("a", "1xT4")], "1xT4"))


def test_up_refuses_the_file_that_it_keeps(tmp_path: Path) -> None:
    """`up` refuses its own stored copy as `--fleet`, even through a symbolic link."""
    keep(tmp_path, written(tmp_path / "one.yaml"))
    (tmp_path / "link.yaml").symlink_to(nodes_file(tmp_path))
    for path in (nodes_file(tmp_path), tmp_path / "link.yaml"):
        tried = CliRunner().invoke(up.command, ["--data", str(tmp_path), "--fleet", str(path)])
        assert tried.exit_code == 2
        assert f"{path} is " in tried.output
