"""Property: any document or text is either read, or refused with an error that names a field or
line.

No other exception is raised."""

import copy
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.kinds.drafts import PodDraft, submitted
from apportion.core.workloads.pods.template import DEFAULT_CONFIG
from apportion.core.workloads.reading import read_documents, with_named
from apportion.core.workloads.trace import read_trace_pods
from apportion.runtime.files.safe_yaml import parse
from apportion_schemas import Event, encode
from tests.support.controlled import CONTROLLED, runtime
from tests.support.manifests import pod, task, volcano_job

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=2)
    | st.sampled_from(["v1", "Pod", "Job", "List", "x" * 2000, 1 << 5000, -(1 << 70)])
)
KEYS = st.sampled_from(["apiVersion", "kind", "metadata", "spec", "items", "name", "containers"])
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=10,
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
GOOD: list[dict[str, Any]] = [
    pod(
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "cpu": "2", "memory": "1Gi"},
        {"nvidia.com/use-gputype": "A100", "scheduling.k8s.io/group-name": "g"},
        initContainers=[{"name": "i", "restartPolicy": "Always"}],
        nodeSelector={"gpu": "on"},
        tolerations=[{"key": "a", "operator": "Exists"}],
        affinity={
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}}
        },
        priority=3,
        overhead={"cpu": "1"},
        volumes=[{"emptyDir": {}}],
    ),
    volcano_job(
        task({"volcano.sh/gpu-memory": 5}, name="t", replicas=2), minAvailable=2, queue="q"
    ),
    {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2, "minTaskMember": {"t": 1}},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 2, "template": pod({"docker.com/vcuda-core": 200})},
    },
    *(row[0] for row in CONTROLLED),
]
RUNTIMES = with_named(DEFAULT_CONFIG, [runtime()])


def places(value: object) -> list[tuple[Any, Any]]:
    """Return each place in the document where a value can be replaced, as (dict or list, key)."""
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return []
    return [(value, key) for key, _ in pairs] + [p for _, child in pairs for p in places(child)]


def check(documents: list[object]) -> None:
    """Read the documents. Check that every pod can be encoded, and that every refusal names its
    field."""
    for outcome in read_documents(documents, RUNTIMES):
        assert (outcome.manifest is None) != (outcome.error is None)
        if outcome.error is not None:
            assert outcome.error.field
            assert "\n" not in str(outcome.error)
            assert len(str(outcome.error)) < 2000
            continue
        assert outcome.manifest is not None
        made = [submitted(draft, "uid") for draft in outcome.manifest.pods[:2]]
        for data in (*made, *outcome.manifest.groups):
            encode(Event(id="1", source="s", time="2026-03-01T09:30:00Z", data=data))


@settings(max_examples=300, deadline=None)
@given(st.lists(ANYTHING, max_size=3))
def test_any_document(documents: list[object]) -> None:
    """Any YAML or JSON document, and any other object, is either read or refused with an error that
    names a field."""
    check(documents)


@settings(max_examples=1_200, deadline=None)
@given(st.sampled_from(GOOD), st.data())
def test_a_good_document_with_anything_in_one_place(
    good: dict[str, Any], data: st.DataObject
) -> None:
    """If any one field of a valid document is replaced, the document is still read or is refused.

    The new value may be of any type, or near a limit of the field."""
    document = copy.deepcopy(good)
    holder, key = data.draw(st.sampled_from(places(document)))
    edge = st.sampled_from([-1, 0, 1, 63, 64, 65, 128, 10_000, 10_001, 1 << 31, 1 << 53, 1 << 63])
    holder[key] = data.draw(ANYTHING | edge | edge.map(str))
    check([document])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text("ab:-&*[]{}!#|>\"' \n\t?,0.", max_size=60))
def test_any_text(text: str) -> None:
    """Any text is either parsed into documents, or gives errors whose line numbers exist in the
    text."""
    for is_json in (False, True):
        for parsed in parse(text, is_json=is_json):
            if parsed.error is not None:
                assert 1 <= parsed.error.line <= text.count("\n") + 1
            assert parsed.line_of("spec.containers[0].name") >= parsed.line


HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
ROW = st.tuples(*(st.integers(0, most) for most in (9999, 9999, 3, 1000)))


def trace(lines: list[str]) -> tuple[list[PodDraft], str]:
    """Read these rows of a trace. Return the pods read, and the field that was refused ("" if none
    was)."""
    read: list[PodDraft] = []
    try:
        read.extend(read_trace_pods([HEADER, *lines]))
    except ManifestError as error:
        return read, error.field
    return read, ""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text('0123456789,-.ab|"\n', max_size=30), max_size=3))
def test_any_trace(lines: list[str]) -> None:
    """Any rows of a trace are either read as pods, or refused with the line number of the first bad
    row."""
    drafts, refused = trace(lines)
    assert not refused or re.match(r"line \d+", refused)
    for draft in drafts:
        data = submitted(draft, "uid")
        encode(Event(id="1", source="s", time="2026-03-01T09:30:00Z", data=data))


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, max_size=5))
def test_any_rows_of_numbers(rows: list[tuple[int, ...]]) -> None:
    """Rows of numbers are read exactly, except that percentages of a GPU are rounded up.

    Reading stops with an error at a row that requests zero percent of a GPU."""
    empty = [at for at, (_, _, gpus, milli) in enumerate(rows) if gpus and not milli]
    drafts, refused = trace([f"p{at},{','.join(map(str, row))},T4" for at, row in enumerate(rows)])
    assert refused == (f"line {empty[0] + 2}.gpu_milli" if empty else "")
    assert len(drafts) == (empty[0] if empty else len(rows))
    for at, (draft, (cpu, memory, gpus, milli)) in enumerate(zip(drafts, rows, strict=False)):
        node = draft.shape.node
        assert (draft.name, node.cpu_milli, node.memory_mib) == (f"p{at}", cpu, memory)
        assert [(ask.count, ask.cores) for ask in draft.shape.asks] == (
            [(gpus, -(-milli // 10) if gpus == 1 else 100)] if gpus else []
        )
