"""A folder knows the fleet of its ledger by its nodes, whatever file or words it came from."""

from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner

from apportion.cli import up
from apportion.cli.kept_fleet import Fleet, keep, kept, of_file, of_nodes, refusal
from apportion.cli.wanted import Wanted
from apportion.runtime.files.fleets import numbered_nodes, read_fleet

NODES = "nodes:\n- {node: a, devices: 1xT4}\n- {node: b, devices: 2xT4}\n"
SPECS = ("1xT4", "4xA100-40GB:mig+2xT4")


def written(path: Path, text: str = NODES) -> Fleet:
    """The fleet of a file with this text."""
    path.write_text(text)
    return of_file(path, str(path))


def test_a_new_folder_takes_any_fleet(tmp_path: Path) -> None:
    """And keeps it as it was, whatever becomes of the file."""
    fleet = written(tmp_path / "fleet.yml")
    data = tmp_path / "data"
    data.mkdir()
    assert (refusal(data, fleet), kept(data)) == ("", None)
    keep(data, fleet)
    (tmp_path / "fleet.yml").unlink()
    assert kept(data) == fleet
    assert [node.name for node in read_fleet(fleet.file_in(data))] == ["a", "b"]


def test_the_same_nodes_are_the_same_fleet(tmp_path: Path) -> None:
    """A copy, other words for them, another order and another form: all go on."""
    keep(tmp_path, written(tmp_path / "one.yaml"))
    for name, text in (
        ("copy.yaml", NODES),
        ("remark.yaml", f"# mine\n{NODES}"),
        ("order.yaml", "nodes:\n- {node: b, devices: 2xT4}\n- {node: a, devices: 1xT4}\n"),
        ("form.csv", "sn,gpu,model\na,1,T4\nb,2,T4\n"),
    ):
        fleet = written(tmp_path / name, text)
        assert refusal(tmp_path, fleet) == "", name
        keep(tmp_path, fleet)
        assert kept(tmp_path) == fleet, "of two forms the older one is gone"


def test_the_same_file_with_other_nodes_is_refused_with_what_differs(tmp_path: Path) -> None:
    """Also under its old name: the nodes that went would stand there without an agent."""
    path = tmp_path / "mine.yaml"
    keep(tmp_path, written(path))
    said = refusal(tmp_path, written(path, NODES.replace("node: a", "node: c").replace("2x", "4x")))
    assert f"begun with {path} as it was then, and now the fleet is {path}: missing: a, " in said
    assert "missing: a, new: c, changed: b; leave --fleet and --gpus out to go on" in said


def test_words_on_the_command_line_are_a_fleet_file(tmp_path: Path) -> None:
    """The very nodes that an agent makes of the words, so a file of them is the same fleet."""
    made = numbered_nodes("node-{}", 3, SPECS)
    fleet = of_nodes([(f"node-{i + 1}", SPECS[i % 2]) for i in range(3)], "3 x T4")
    keep(tmp_path, fleet)
    assert read_fleet(fleet.file_in(tmp_path)) == made


def test_gpus_of_a_machine_are_known_by_name(tmp_path: Path) -> None:
    """There is no file of them; who says nothing is told what to give again."""
    keep(tmp_path, Fleet("the GPUs of vm"))
    assert refusal(tmp_path, Fleet("the GPUs of vm")) == ""
    assert "or --gpus local, to go on" in refusal(tmp_path, written(tmp_path / "one.yaml"))
    keep(tmp_path, written(tmp_path / "one.yaml"))
    assert "leave --fleet and --gpus out" in refusal(tmp_path, Fleet("the GPUs of vm"))


def test_what_is_kept_and_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Somebody wrote into the folder: a refusal, and nothing is begun on a guess."""
    keep(tmp_path, written(tmp_path / "one.yaml"))
    (tmp_path / "fleet.yaml").write_text("nodes: 7\n")
    assert "cannot be read: fleet.yaml: " in refusal(tmp_path, written(tmp_path / "one.yaml"))


def test_up_without_a_fleet_goes_on_with_the_one_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a new folder it is the samples' fleet, and of a temporary one too."""
    begun: list[tuple[Fleet, tuple[str, ...]]] = []

    def begin(wanted: Wanted, _fork_server: object) -> int:
        begun.append((wanted.fleet, wanted.agent))
        return 0

    monkeypatch.setattr("apportion.cli.standalone.stand", begin)
    monkeypatch.setattr("apportion.cli.forking.ForkServer.start", lambda _self: None)
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
    assert run("--data", str(data)) == (fleet, ("--fleet", str(data / "fleet.yaml")))
    monkeypatch.setenv("APPORTION_DATA", str(data))
    assert run()[0] == fleet
    assert run("--ephemeral")[0] == samples
