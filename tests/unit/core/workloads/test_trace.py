"""Tests of reading rows of a production trace: shares, whole GPUs, GPU models and invalid rows."""

from typing import Any

import pytest

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.trace import read_trace_pods
from apportion_schemas import Ask, DeviceConstraints

HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos"


def ask(**fields: Any) -> tuple[Ask, ...]:
    return (Ask(container="main", family="nvidia", **fields),)


@pytest.mark.parametrize(
    ("columns", "wanted", "dialect"),
    [
        ("1,460,,LS", ask(memory_percent=46, cores=46), "hami"),
        ("1,1000,,LS", ask(cores=100), "hami"),
        ("8,1000,,LS", ask(count=8, cores=100), "hami"),
        ("1,455,,LS", ask(memory_percent=46, cores=46), "hami"),
        ("1,995,,LS", ask(cores=100), "hami"),
        ("1,10,,LS", ask(memory_percent=1, cores=1), "hami"),
        ("0,0,,BE", (), "none"),
    ],
)
def test_asks(columns: str, wanted: tuple[Ask, ...], dialect: str) -> None:
    """A row with part of a GPU becomes a share with that part of memory and cores. A row with one
    or more whole GPUs becomes whole GPUs."""
    (pod,) = read_trace_pods([HEADER, f"p,6000,12288,{columns}"])
    assert pod.shape.asks == wanted
    assert pod.dialect == dialect
    assert (pod.shape.node.cpu_milli, pod.shape.node.memory_mib) == (6000, 12288)


def test_models() -> None:
    """If a row lists several GPU models, any of them will do. A row without models accepts every
    model."""
    rows = ["a,1,1,1,500,V100M32|T4|V100M32,", "b,1,1,1,500,,"]
    listed, free = read_trace_pods([HEADER, *rows])
    assert listed.shape.devices == DeviceConstraints(use_types=("T4", "V100M32"))
    assert free.shape.devices == DeviceConstraints()


def test_columns_may_be_missing_at_the_end() -> None:
    """A row of a trace may lack its last columns, because some traces contain no GPU models."""
    (pod,) = read_trace_pods(["name,cpu_milli,memory_mib,num_gpu,gpu_milli", "p,1,1,1,1000"])
    assert pod.shape.asks == ask(cores=100)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("p,1,1,1,1001,,", 'line 3.gpu_milli: "1001" is out of range'),
        ("p,1,1,1,0,,", "line 3.gpu_milli: 0 is not a share of a GPU; write 1 to 1000"),
        ("p,1,1,-1,0,,", 'line 3.num_gpu: "-1" is out of range'),
        ("p,one,1,1,10,,", 'line 3.cpu_milli: "one"'),
        (",1,1,1,10,,", "line 3.name is missing; add it"),
        ("p,1", "line 3.memory_mib is missing; add it"),
    ],
)
def test_refusals(row: str, says: str) -> None:
    """An invalid row is refused with its line and column. The rows before it are still read."""
    pods = read_trace_pods([HEADER, "ok,1,1,0,0,,", row])
    assert next(pods).name == "ok"
    with pytest.raises(ManifestError) as caught:
        next(pods)
    assert str(caught.value).startswith(says)
