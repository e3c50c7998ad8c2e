"""CONTRIBUTING's recipes for adding a dialect and a device vendor work in a copy of the repository.

Each test edits exactly as many files as its recipe names. The addition must then appear in every
interface."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.tidy.test_recipes_of_placement import ROOT, Edits, answers, follow

DIALECTS = "services/apportion/core/workloads/dialects"
DEVICES = "services/apportion/core/devices"
GUARDS = "deploy/helm/apportion/templates/_guards.tpl"
MODULE = '''"""Acme: `acme.com/tpu`, whole devices and parts of their memory in MiB."""

from apportion.core.workloads.dialects import chart, hami
from apportion.core.workloads.dialects.amounts import Amounts, Container
from apportion.core.workloads.dialects.dialect import (
    Dialect,
    Notes,
    PlacedPod,
    Resources,
    of_family,
    record,
)
from apportion.core.workloads.dialects.names import DialectConfig
from apportion_schemas import Ask, DeviceConstraints

COUNT, MEMORY, CORES = "acme.com/tpu", "acme.com/tpu-memory", "acme.com/tpu-cores"
HELD = "hami.io/acme-devices-allocated"


def _resources(_: DialectConfig) -> Resources:
    return of_family("FAMILY", (COUNT, MEMORY, CORES), clamps=True)


def _read(container: Container, amounts: Amounts, _: DialectConfig) -> Ask | None:
    count, memory = amounts.get(COUNT), amounts.get(MEMORY)
    if count is None:
        return None
    memory_mib = memory.memory_mib(1) if memory else None
    return Ask(
        container=container.name,
        family="FAMILY",
        count=count.devices(),
        memory_mib=memory_mib,
        cores=100 if memory_mib is None else 0,
    )


def _choose(_: Notes) -> DeviceConstraints:
    return DeviceConstraints()


def _render(it: PlacedPod) -> dict[str, str]:
    return {HELD: "".join(record(s.device, "TPU", s.memory_mib, s.cores) for s in it.placed.shares)}


def _check(section: object, path: str) -> str:
    names = {"resourceCountName": COUNT}
    chart.same(chart.an_object(section, path), names, path)
    return "these names are fixed"


DIALECT = Dialect(
    name="acme",
    devices="TPUs",
    resources=_resources,
    read=_read,
    choose=_choose,
    reserved={"acme.com/use-type": "selects TPUs in a pod that asks for {devices}"},
    render=_render,
    recover={HELD: hami.segments_of("FAMILY")},
    needs=dict.fromkeys((MEMORY, CORES), (COUNT, "asks for nothing alone")),
    writes=("acme.com/plugin-",),
    sections={"acme": _check},
)
'''
ROW: Edits = (
    (f"{DIALECTS}/listing.py", "    ascend,\n", "    acme,\n"),
    (f"{DIALECTS}/listing.py", "    ascend.DIALECT,\n", "    acme.DIALECT,\n"),
)
GUARD: Edits = ((GUARDS, "cambricon|hygon", "acme|"),)
CATALOGUE = """
[[family]]
name = "acme"
title = "Acme TPU"
modes = ["exclusive", "hami-core"]
types = ["TPU9"]
"""
MODEL = """
[TPU9]
model = "TPU9"
family = "acme"
memory_mib = 32768

"""

ASKED = """
import io, json, pathlib, re, tempfile
from apportion.core.admission import Admitted, Asked, Rules, admit
from apportion.core.configuration.hami_volcano_keys import without_foreign
from apportion.core.devices.simulating import models
from apportion.core.doctor.cluster import cluster_facts
from apportion.core.workloads.dialects import DialectConfig
from apportion.core.workloads.dialects.listing import RECOVERS, claimed, count_names
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.lint.checking import checked
from apportion.core.workloads.lint.typo_checks import suspects
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.runtime.files.manifests import read_manifest_files
from apportion.runtime.files.manifests import read_wish

from tests.support.fleet import observed as node
from tests.support.ledger_of import Ledger
from tools.managed_resources import told

def pod(limits, **annotations):
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    about = {"name": "p", "annotations": annotations}
    spec = {"containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}

good = pod({"acme.com/tpu": "1", "acme.com/tpu-memory": "4096"})
config = DialectConfig()
(seen,) = checked(good, ManifestConfig())
file = pathlib.Path(tempfile.mkdtemp(), "p.json")
file.write_text(json.dumps(good))
wish, problems = read_wish(read_manifest_files([str(file)], io.BytesIO()))
answer = admit(Asked(operation="CREATE", pod=good), Rules())
def slips(limits):
    bound = pod(limits, **{"acme.com/plugin-time": "1"})
    return [each.field for each in suspects(bound, config, placed=True)]
extended = {"acme.com/tpu": 1}
observed = node("n1", extended=extended)
queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"},
         "spec": {"capability": {"acme.com/tpu-memory": "4Gi"}}}
try:
    unit = limit_of(queue, config) and ""
except ValueError as error:
    unit = error.field
left, passed = without_foreign({"acme": {"resourceCountName": "acme.com/tpu"}})
text = pathlib.Path("deploy/helm/apportion/templates/_guards.tpl").read_text()
pattern = re.search("[(][(]nvidia[^{]*", text)[0]
print(json.dumps({
    "check": [draft.dialect for draft in seen.pods],
    "submit": [[ask.family, ask.memory_mib] for ask in wish.pods[0].shape.asks],
    "problems": list(map(str, problems)),
    "slips": wish.slips,
    "webhook": getattr(answer, "why", None),
    "known": slips({"acme.com/tpu": "1"}),
    "typo": slips({"acme.com/tpv": "1"}),
    "alone": slips({"acme.com/tpu-memory": "1"}),
    "clamped": slips({"acme.com/tpu": "1", "acme.com/tpu-cores": "150"}),
    "doctor": cluster_facts(Ledger(observed).state).without_agent,
    "unit": unit,
    "chart": [left, passed],
    "plugin": "acme.com/tpu" in count_names(config),
    "held": "hami.io/acme-devices-allocated" in RECOVERS,
    "guarded": "acme" in pattern,
    "generated": "acme.com/tpu" in told("    managedResources:\\n"),
    "simulated": [each.family for each in models().values() if each.family == "acme"],
}))
"""


def added(copy: Path, edits: Edits, files: Mapping[str, str]) -> int:
    """Apply a recipe's edits to a copy, and add its new files. Return how many files changed."""
    shutil.copytree(ROOT / "deploy" / "helm", copy / "deploy" / "helm")
    changed = follow(copy, edits)
    for path, text in files.items():
        (copy / path).write_text(text, "utf-8")
    return changed + len(files)


def test_a_dialect_is_a_module_and_a_row(tmp_path: Path) -> None:
    """Adding a dialect for existing devices takes one new module and one row in the list of
    dialects."""
    module = MODULE.replace("FAMILY", "cambricon")
    assert added(tmp_path, ROW, {f"{DIALECTS}/vendors/acme.py": module}) == 2
    _assert_found(answers(tmp_path, ASKED), family="cambricon")


def test_a_vendor_is_its_data_its_dialect_and_its_domain(tmp_path: Path) -> None:
    """Adding a vendor changes five files. The admission policies then cover its resource names."""
    files = {
        f"{DIALECTS}/vendors/acme.py": MODULE.replace("FAMILY", "acme"),
        f"{DEVICES}/catalogue/acme.toml": CATALOGUE,
    }
    model: Edits = ((f"{DEVICES}/models.toml", "[P100]\n", MODEL),)
    assert added(tmp_path, (*ROW, *model, *GUARD), files) == 5
    found = answers(tmp_path, ASKED)
    _assert_found(found, family="acme")
    assert found["guarded"]
    assert found["simulated"] == ["acme"]


def _assert_found(found: dict[str, object], *, family: str) -> None:
    field = "spec.containers[0].resources.limits"
    assert found["check"] == ["acme"]
    assert (found["submit"], found["problems"]) == ([[family, 4096]], [])
    assert found["webhook"] == "taken"
    assert (found["slips"], found["known"]) == ([], [])
    assert found["typo"] == [f'{field}["acme.com/tpv"]']
    assert found["alone"] == [f'{field}["acme.com/tpu-memory"]']
    assert found["clamped"] == [f'{field}["acme.com/tpu-cores"]']
    assert found["doctor"] == ["n1"]
    assert found["unit"] == 'spec.capability["acme.com/tpu-memory"]'
    assert found["chart"] == [{}, [["acme", "these names are fixed"]]]
    assert all(found[each] for each in ("plugin", "held", "generated"))
