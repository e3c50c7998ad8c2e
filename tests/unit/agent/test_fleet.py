"""Tests of how fleets of simulated nodes are read from the command line and from files."""

from pathlib import Path

import pytest

from apportion.cli.up.main import misnamed
from apportion.runtime.files.fleets import FleetInvalid, numbered_nodes, read_fleet
from tests.support.golden import Golden


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_names_by_pattern_and_descriptions_in_turn() -> None:
    """Simulated nodes are named by the given pattern. If there are several device descriptions, the
    nodes get them in turn."""
    nodes = numbered_nodes("gpu-{}.rack", 3, ["8xT4", "4xA10"])
    assert [node.name for node in nodes] == ["gpu-1.rack", "gpu-2.rack", "gpu-3.rack"]
    assert [len(node.devices) for node in nodes] == [8, 4, 8]
    assert nodes[1].host.cpu_milli == 4 * 16_000


def test_a_single_node_keeps_its_name() -> None:
    """The names of simulated nodes get a number only if there is more than one node."""
    assert numbered_nodes("gpu", 1, ["1xT4"])[0].name == "gpu"
    assert numbered_nodes("gpu", 2, ["1xT4"])[1].name == "gpu-2"


def test_no_description_no_simulated_node() -> None:
    """Without a device description there are no simulated nodes."""
    assert numbered_nodes("gpu", 1, []) == []


@pytest.mark.parametrize("pattern", ["", "n" * 250])
def test_the_name_is_bounded(pattern: str) -> None:
    """An empty or overlong node name is refused."""
    with pytest.raises(FleetInvalid, match="characters"):
        numbered_nodes(pattern, 1, ["1xT4"])


@pytest.mark.parametrize("count", [0, -1, 20_001])
def test_the_number_of_nodes_is_bounded(count: int) -> None:
    """A node count below 1 or over the limit is refused."""
    with pytest.raises(FleetInvalid, match=str(count)):
        numbered_nodes("gpu", count, ["1xT4"])


def test_a_csv_of_a_cluster_trace(tmp_path: Path) -> None:
    """A CSV file in the format of a published cluster trace is read as a fleet: columns `sn`,
    `cpu_milli`, `memory_mib`, `gpu` and `model`."""
    path = written(
        tmp_path,
        "nodes.csv",
        "sn,cpu_milli,memory_mib,gpu,model\n"
        "openb-node-0000,64000,262144,2,P100\nopenb-node-0001,96000,393216,0,\n",
    )
    first, second = read_fleet(path)
    assert first.name == "openb-node-0000"
    assert [d.model for d in first.devices] == ["NVIDIA Tesla P100-PCIE-16GB"] * 2
    assert (first.host.cpu_milli, first.host.memory_mib) == (64_000, 262_144)
    assert second.devices == ()


def test_a_csv_with_descriptions(tmp_path: Path) -> None:
    """A CSV file with the columns `node` and `devices` is read as a fleet."""
    path = written(tmp_path, "fleet.csv", "node, devices\na, 4xA100-40GB:mig\nb, 1xT4+1xA10\n")
    assert [[d.mode for d in node.devices] for node in read_fleet(path)] == [
        ["mig"] * 4,
        ["hami-core"] * 2,
    ]


def test_yaml(tmp_path: Path) -> None:
    """A YAML list of nodes is read as a fleet, with each node's labels and maximum number of
    pods."""
    path = written(
        tmp_path,
        "fleet.yaml",
        "nodes:\n- {node: a, devices: 8xH100-80GB, labels: {zone: west}, pods: 20}\n- {node: b}\n",
    )
    first, second = read_fleet(path)
    assert (len(first.devices), first.host.pods) == (8, 20)
    assert first.host.labels.items() >= {"zone": "west", "kubernetes.io/hostname": "a"}.items()
    assert second.devices == ()


def test_a_simulated_node_is_found_by_its_hostname() -> None:
    """A simulated node has the labels that the kubelet and GPU feature discovery would set, so node
    selectors match it."""
    first, second = numbered_nodes("n", 2, ["4xT4", "1xAscend310P"])
    assert first.host.labels == {
        "kubernetes.io/hostname": "n-1",
        "nvidia.com/gpu.product": "Tesla-T4",
        "nvidia.com/gpu.memory": str(first.devices[0].memory_mib),
        "nvidia.com/gpu.count": "4",
    }
    assert second.host.labels == {"kubernetes.io/hostname": "n-2"}


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("f.csv", "", "wrong columns: none"),
        ("f.csv", "name,gpu\na,1\n", "write node"),
        ("f.csv", "sn,gpu,model\na,2,X99\n", "line 2: node 'a': devices: unknown model 'X99'"),
        ("f.csv", "sn,gpu,model\na,-2,T4\n", "line 2.*-2xT4"),
        ("f.csv", "sn,cpu_milli,gpu,model\na,many,2,T4\n", r"line 2.*cpu_milli"),
        ("f.csv", "sn,cpu_milli,gpu,model\na,-1,2,T4\n", r"line 2.*cpu_milli"),
        ("f.csv", "sn,gpu,model\na,2,T4\na,2,T4\n", "line 3: duplicate node 'a'"),
        ("f.csv", "sn,gpu,model\n,2,T4\n", "line 2.*node"),
        ("f.yaml", "nodes: 3\n", "nodes"),
        ("f.yaml", "nodes: [{node: a, gpus: 3}]\n", "gpus"),
        ("f.yaml", "nodes: [{node: a, devices: 1xX99}]\n", r"nodes\[0\].*X99"),
        ("f.yaml", "nodes: [\n", "line"),
        ("f.yaml", "", "0 documents"),
        ("f.yaml", "nodes: []", "no node"),
        ("f.csv", "sn,gpu,model\n", "no node"),
        ("f.yaml", "nodes: []\n---\nnodes: []\n", "2 documents"),
        ("f.yaml", "a: &a [x, x]\nb: &b [*a, *a]\n" + "nodes: [*b]\n" * 200, "aliases"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, named: str) -> None:
    """An error in a fleet file names the file, the location and the value. An invalid file yields
    no node at all."""
    path = written(tmp_path, name, text)
    with pytest.raises(FleetInvalid, match=named) as caught:
        read_fleet(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "lines"),
    [
        ("f.csv", "node,devices\ng 3,4xT4\nUPPER_x,2xX99\ng-1.rack,1xT4\n", (2, 3)),
        ("f.yaml", "nodes:\n- node: g 3\n- node: UPPER_x\n  devices: 2xX99\n- node: g\n", (2, 3)),
    ],
)
def test_a_new_fleet_has_names_that_nodes_may_have(
    golden: Golden, tmp_path: Path, file: str, text: str, lines: tuple[int, int]
) -> None:
    """A new fleet with invalid node names is refused. There is one error per name, with the line of
    the name. A fleet that was accepted earlier may keep such names."""
    path = written(tmp_path, file, text)
    with pytest.raises(FleetInvalid) as caught:
        read_fleet(path, misnamed=misnamed)
    first, second, model = str(caught.value).splitlines()
    for said, line, name in ((first, lines[0], "g 3"), (second, lines[1], "UPPER_x")):
        assert said.startswith(f"{path}: line {line}: ")
        assert f'node: "{name}" ' in said
    assert "model 'X99'" in model
    golden({text: str(caught.value)})
    path.write_text(text.replace("X99", "T4"))
    assert [node.name for node in read_fleet(path)][:2] == ["g 3", "UPPER_x"]


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    """The error about a fleet file lists the first 20 problems in file order, then the number of
    remaining problems."""
    text = "nodes:\n- {node: a, devices: 1xX99}\n- {node: b, gpus: 3}\n- {node: c}\n- {node: c}\n"
    with pytest.raises(FleetInvalid) as caught:
        read_fleet(written(tmp_path, "f.yaml", text))
    lines = str(caught.value).splitlines()
    assert [line.partition("nodes")[2][:3] for line in lines] == ["[0]", "[1]", "[3]"]
    with pytest.raises(FleetInvalid) as caught:
        read_fleet(written(tmp_path, "g.csv", "sn,gpu,model\n" + ",2,T4\n" * 30))
    assert str(caught.value).splitlines()[20:] == ["and 10 more errors"]
    with pytest.raises(FleetInvalid) as caught:
        numbered_nodes("n", 100, ["1xX98", "1xX99"])
    assert len(str(caught.value).splitlines()) == 2


def test_a_field_of_a_node_that_there_is_not(golden: Golden, tmp_path: Path) -> None:
    """In a fleet file, an unknown field of a node is reported with its line, together with
    duplicate names and other problems."""
    text = (
        "nodes:\n- node: a\n  cpu: 3\n- node: a\n- {node: b, devics: 1xT4}\n- {node: c, zone: x}\n"
        "- {node: d, devices: 1xX99}\n- {node: d}\n- {node: e,\n   pods: many}\n"
    )
    path = written(tmp_path, "f.yaml", text)
    with pytest.raises(FleetInvalid) as caught:
        read_fleet(path)
    lines = [line.removeprefix(f"{path}: line ") for line in str(caught.value).splitlines()]
    assert [int(line.partition(":")[0]) for line in lines] == [3, 4, 5, 6, 7, 8, 10]
    golden({text: str(caught.value)})


def test_files_that_are_not_text_or_not_there(tmp_path: Path) -> None:
    """Reading a fleet file that does not exist or is not text raises FleetInvalid."""
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "b.csv", tmp_path / "none.csv", tmp_path):
        with pytest.raises(FleetInvalid, match="cannot read it"):
            read_fleet(path)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    """A fleet file over the size limit is refused before it is read."""
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(FleetInvalid, match="exceed the limit"):
        read_fleet(path)


def test_a_node_may_have_no_device(tmp_path: Path) -> None:
    """A fleet may include nodes without devices, for pods that request no device."""
    path = written(tmp_path, "f.yaml", "nodes: [{node: plain, cpu_milli: 4000}]")
    [node] = read_fleet(path)
    assert (node.devices, node.host.cpu_milli) == ((), 4000)
