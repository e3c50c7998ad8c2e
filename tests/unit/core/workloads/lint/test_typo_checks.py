"""Tests of warnings about probable mistakes in manifests: typos, unusual amounts and fields without
effect."""

from typing import Any

import pytest

from apportion.core.workloads.dialects.names import DialectConfig
from apportion.core.workloads.kinds.limits import QUEUE_AMOUNTS
from apportion.core.workloads.kinds.queues import KAI_QUEUE
from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.lint.ignored_fields import CONTAINER_FIELDS
from apportion.core.workloads.lint.typo_checks import of_no_device, of_queue, suspects
from apportion.core.workloads.pods.unsupported import POD_SPEC
from tests.support.golden import Golden
from tests.support.volcano_crds import FIELDS, KAI_FIELDS

CONFIG = DialectConfig()


def pod(annotations: dict[str, str] | None = None, **limits: Any) -> dict[str, Any]:
    """Return a pod with these annotations and limits.

    In a resource's name, `_` stands for a hyphen and `__` for a slash."""
    named = {name.replace("__", "/").replace("_", "-"): value for name, value in limits.items()}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": named}}]},
    }


def found(document: object, *, placed: bool = False) -> list[str]:
    """Return the field and the reason of every warning about this document."""
    return [f"{each.field} {each.why}" for each in suspects(document, CONFIG, placed=placed)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvida.com/gpumem", "nvidia.com/gpumem"),
        ("volcano.sh/vgpu-memoryy", "volcano.sh/vgpu-memory"),
    ],
)
def test_a_resource_that_is_nearly_ours(name: str, meant: str) -> None:
    """A resource name that is close to a supported name causes a warning with its path and a
    suggestion."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = {name: 1}
    (said,) = found(document)
    assert said.startswith(f'spec.containers[0].resources.limits["{name}"] ')
    assert said.endswith(f" {meant}?")


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("CUDA_DISABLE_CONTROL", "true", 1),
        ("CUDA_DISABLE_CONTROL", "false", 0),
        ("GPU_CORE_UTILIZATION_POLICY", "disable", 1),
        ("GPU_CORE_UTILIZATION_POLICY", "force", 0),
    ],
)
def test_F18_variables_that_end_the_hold_of_hami_core_are_named(
    name: str, value: str, number: int
) -> None:
    """Environment variables that switch HAMi-core off cause a warning, because they work only in
    namespaces with permission."""
    document = pod(nvidia_com__gpu=1)
    document["spec"]["containers"][0]["env"] = [{"name": name, "value": value}]
    fields = [each.field for each in suspects(document, CONFIG)]
    assert fields.count("spec.containers[0].env[0].value") == number


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("nvidia.com/use-gputyp", "nvidia.com/use-gputype"),
        ("hami.io/gpu-scheduler-polcy", "hami.io/gpu-scheduler-policy"),
        ("volcano.sh/vgpu-mod", "volcano.sh/vgpu-mode"),
    ],
)
def test_an_annotation_that_is_nearly_ours(key: str, meant: str) -> None:
    """An annotation that is close to a supported one causes a warning, in pods and in pod
    templates."""
    for document in (pod({key: "x"}), {"spec": {"template": pod({key: "x"})}}):
        (said,) = found(document)
        assert f'"{key}"' in said
        assert said.endswith(f" {meant}?")


def test_F1_one_npu_of_a_module_causes_a_warning() -> None:
    """A request for one Ascend 910C causes a warning, because it means both NPUs of a module. A
    request for two, or for memory of one, does not."""
    document, name = pod(), "huawei.com/Ascend910C"
    for limits, number in (({name: 1}, 1), ({name: 2}, 0), ({name: 1, f"{name}-memory": 16384}, 0)):
        document["spec"]["containers"][0]["resources"] = {"limits": limits}
        assert len(found(document)) == number
    document["spec"]["containers"][0]["resources"] = {"limits": {name: 1}}
    assert found(document)[0].endswith("; write 2")


@pytest.mark.parametrize("name", ["nvidia.com/gpucores", "cambricon.com/mlu.smlu.vcore"])
def test_more_cores_than_a_device_has_are_told_of(name: str) -> None:
    """A request for more than 100 percent of a device's cores causes a warning, because it counts
    as 100, as in HAMi.

    Smaller amounts cause no warning, nor does text that is refused anyway."""
    document = pod()
    limits: dict[str, Any] = {"nvidia.com/gpu": 1, "cambricon.com/vmlu": 1}
    document["spec"]["containers"][0]["resources"]["limits"] = limits
    for fine in (100, "100", "many"):
        limits[name] = fine
        assert found(document) == []
    for much in (130, "130"):
        limits[name] = much
        (said,) = found(document)
        assert f'["{name}"] is 130 percent' in said
        assert "counts as 100" in said


@pytest.mark.parametrize(
    ("name", "most", "said"),
    [
        ("volcano.sh/vgpu-memory", 183_359, "counts as all memory of the allocated GPU, as in"),
        ("nvidia.com/gpumem", 183_359, "; write the amount for one device"),
        ("volcano.sh/gpu-memory", 183_359, "; write the amount for one device"),
        ("docker.com/vcuda-memory", 716, "(717 units of 256 MiB)"),
        ("docker.com/vcuda-memory", 716, "; write 3 if you meant MiB"),
        ("cambricon.com/mlu.smlu.vmemory", 320, "; write 2 if you meant MiB"),
        ("huawei.com/Ascend910C-memory", 65_536, "65,537 MiB"),
        ("huawei.com/ascend310p-memory", 24_576, "largest known device has 24,576 MiB"),
    ],
)
def test_more_memory_than_any_device_has_is_told_of(name: str, most: int, said: str) -> None:
    """A request for more memory than any device has causes a warning that states the unit.

    Smaller amounts cause no warning, nor do amounts that are refused anyway."""
    document = pod()
    limits: dict[str, Any] = {"cambricon.com/vmlu": 1} if "cambricon" in name else {}
    if "Ascend910C" in name:
        limits = {"huawei.com/Ascend910C": 1}
    document["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    for fine in (most, str(most), "much", -1, "4Gi", 1 << 40):
        limits[name] = fine
        assert found(document) == []
    for much in (most + 1, str(most + 1)):
        limits[name] = much
        (why,) = found(document)
        assert why.startswith(f'spec.containers[0].resources.limits["{name}"] is ')
        assert said in why


def test_a_unit_of_ones_own_is_said(golden: Golden) -> None:
    """If the configuration sets another unit of memory, the warning shows the amount in MiB.

    With `gpuMemoryFactor: 1024`, for example, 3000 means 3,072,000 MiB."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpumem": 3000}
    (said,) = suspects(document, DialectConfig(memory_factor=1024))
    assert "3,072,000 MiB" in said.why
    golden({"nvidia.com/gpumem: 3000, in units of 1024 MiB": said.why})


@pytest.mark.parametrize(
    ("amount", "part", "idle"),
    [
        ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpumem-percentage"),
        ("volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-memory"),
    ],
)
def test_memory_as_an_amount_and_as_a_part(
    golden: Golden, amount: str, part: str, idle: str
) -> None:
    """A request for both an amount and a percentage of memory causes a warning.

    HAMi uses the amount, and Volcano the percentage."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = limits = {amount: 3000, part: 50}
    (said,) = found(document)
    counting = part if idle == amount else amount
    assert said.startswith(f'spec.containers[0].resources.limits["{idle}"] is {limits[idle]} and ')
    assert f" {counting} " in said
    golden({f"{amount}: 3000, {part}: 50": said})
    limits[part] = 0
    assert found(document) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/mig-7g.81gb", "nvidia.com/mig-7g.80gb"),
        (
            "huawei.com/Ascend910B",
            "huawei.com/Ascend910B2, huawei.com/Ascend910B3 or huawei.com/Ascend910B4",
        ),
    ],
)
def test_what_decides_everything_is_said_so(golden: Golden, name: str, meant: str) -> None:
    """If a misspelt resource name would keep the pod pending forever, the warning says so, and
    suggests all similar names."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = {name: 1}
    (said,) = found(document)
    assert said.endswith(f" {meant}?")
    golden({f"{name}: 1": said})


def test_an_instance_by_its_profile_says_what_reads_it(golden: Golden) -> None:
    """A MIG profile as a resource name causes a warning, unless a setting enables such names.

    The warning names the setting."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.5gb": 1}
    (said,) = found(document)
    assert "migStrategy" in said
    assert said.endswith(" nvidia.com/gpu: 1 and nvidia.com/gpumem: 4864")
    golden({"nvidia.com/mig-1g.5gb: 1": said})
    assert not list(suspects(document, DialectConfig(mig_by_profile=True)))


@pytest.mark.parametrize("profile", ["1g.7gb", "1g.5gb.me", "1g.24gb.gfx", "1g.24gb-me"])
def test_an_instance_of_a_profile_that_no_model_has(golden: Golden, profile: str) -> None:
    """A MIG profile that no model has causes a warning, even if MIG profiles are enabled as
    resource names."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = {f"nvidia.com/mig-{profile}": 1}
    configs = (CONFIG, DialectConfig(mig_by_profile=True))
    [said], [again] = (list(suspects(document, config)) for config in configs)
    assert said == again
    golden({f"nvidia.com/mig-{profile}: 1": said.why})


@pytest.mark.parametrize(
    ("limits", "slips", "notes"),
    [
        ({"nvidia.com/gpu": 0}, 0, 1),
        ({"nvidia.com/gpu": "0", "cpu": 1}, 0, 1),
        ({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 3000}, 1, 0),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 0}, 0, 0),
        ({"huawei.com/Ascend310P": 0, "huawei.com/Ascend310P-memory": 3000}, 1, 0),
        ({"nvidia.com/gpumem": "lots", "nvidia.com/gpu": 0}, 0, 0),
        ({"cpu": 0, "example.com/nic": 0}, 0, 0),
    ],
)
def test_no_device_is_asked_for(
    golden: Golden, limits: dict[str, Any], slips: int, notes: int
) -> None:
    """A count of zero devices causes no warning, because Helm charts render it.

    It causes a warning if the container requests other device amounts too."""
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = limits
    said = found(document)
    noted = list(of_no_device(document, CONFIG))
    assert (len(said), len(noted)) == (slips, notes)
    if said:
        golden({str(limits): "\n".join(said)})


def test_a_field_that_is_nearly_one_that_is_read() -> None:
    """A misspelt field of spec, container or resources causes a warning with its path."""
    document = pod()
    document["spec"]["schedulerNam"] = "x"
    document["spec"]["x-of-a-newer-api"] = "x"
    container = document["spec"]["containers"][0]
    container["resource"] = {}
    container["resources"] = {"limit": {}}
    for at, whole in (("", document), ("spec.template.", {"spec": {"template": document}})):
        said = dict(each.split(" ", 1) for each in found(whole))
        assert {field: why.split()[-1] for field, why in said.items()} == {
            f"{at}spec.schedulerNam": "schedulerName?",
            f"{at}spec.containers[0].resource": "resources?",
            f"{at}spec.containers[0].resources.limit": "limits?",
        }


def test_every_field_of_the_guide_is_known() -> None:
    """A field that the guide lists as ignored or refused is not reported as a typo."""
    paths = [path.split(".")[0].removesuffix("[]") for path in ignored_fields.every()]
    fields = dict.fromkeys((*paths, *(row.path for row in POD_SPEC)), "x")
    of_container = {path.split(".")[0].removesuffix("[]"): "x" for path in CONTAINER_FIELDS}
    assert found({"spec": fields | {"containers": [of_container]}}) == []


def test_one_of_our_domain_that_is_near_to_nothing(golden: Golden) -> None:
    """An unknown name in Apportion's domain causes a warning, even if no similar name can be
    suggested."""
    (said,) = found(pod({"hami.io/something-else-entirely": "x"}))
    golden({"hami.io/something-else-entirely": said})


@pytest.mark.parametrize(
    ("kind", "part", "name", "meant"),
    [
        ("Queue", "capability", "volcano.sh/vgpu-nubmer", "volcano.sh/vgpu-number"),
        ("Queue", "capability", "memroy", "memory"),
        ("Queue", "capability", "gpus", ""),
        ("ResourceQuota", "hard", "limits.nvidia.com/gpumme", "limits.nvidia.com/gpumem"),
        ("ResourceQuota", "hard", "limit.nvidia.com/gpumem", "limits.nvidia.com/gpumem"),
    ],
)
def test_a_limit_of_nothing_that_there_is(
    golden: Golden, kind: str, part: str, name: str, meant: str
) -> None:
    """A queue's or quota's limit on an unknown resource causes a warning, because it would never
    apply."""
    (said,) = found({"kind": kind, "spec": {part: {name: 4}}})
    assert said.startswith(f'spec.{part}["{name}"] ')
    assert said.endswith(f" {meant}?") == bool(meant)
    golden({f"{kind} {name}": said})


@pytest.mark.parametrize(
    ("kind", "limited"),
    [
        ("Queue", {"cpu": 1, "pods": 1, "hugepages-2Mi": 1, "nvidia.com/gpumem": 1, "b.c/d": 1}),
        ("ResourceQuota", {"requests.nvidia.com/gpu": 1, "nvidia.com/gpu": 1, "limits.cpu": 1}),
    ],
)
def test_limits_of_what_there_is(kind: str, limited: dict[str, int]) -> None:
    """A limit on a known resource causes no warning, nor does the card quota of a queue."""
    document = {
        "kind": kind,
        "metadata": {"annotations": {"volcano.sh/card.quota": "{}"}},
        "spec": {"capability": limited, "hard": limited},
    }
    assert found(document) == []


def test_what_is_known_or_of_others_is_no_business_of_ours() -> None:
    """Names that Apportion supports cause no warning, nor do names in other systems' domains."""
    annotations = {
        "nvidia.com/use-gputype": "A100",
        "hami.io/node-scheduler-policy": "spread",
        "scheduling.k8s.io/group-name": "g",
        "scheduling.volcano.sh/group-name": "g",
        "prometheus.io/scrape": "true",
        "kubectl.kubernetes.io/restartedAt": "x",
    }
    assert found(pod(annotations, nvidia__com=1, cpu=1, memory="1Gi", example__nic=1)) == []
    assert found(pod(nvidia__gpu=1)) == []


def test_what_schedulers_write_is_passed_over_on_a_placed_pod() -> None:
    """On a placed pod, the annotations that HAMi and Volcano write there cause no warning."""
    document = pod({"hami.io/vgpu-node": "n1", "volcano.sh/vgpu-time": "7"})
    assert found(document, placed=True) == []
    assert len(found(document)) == 2


@pytest.mark.parametrize(
    "document",
    [
        None,
        7,
        [],
        {"annotations": 7},
        {"resources": {"limits": 3}},
        {"kind": "Queue"},
        {"kind": "Queue", "spec": {"capability": [1]}},
        {"kind": ["Queue"]},
    ],
)
def test_any_document_is_looked_at(document: object) -> None:
    """A document of any type can be checked, even one without a name."""
    assert found(document) == []


def test_a_deep_document_ends() -> None:
    """The check of a very deeply nested document ends quickly."""
    deep: dict[str, Any] = pod({"hami.io/x": "y"})
    for _ in range(200):
        deep = {"spec": deep}
    assert found(deep) == []


@pytest.mark.parametrize("key", ignored_fields.ANNOTATIONS)
def test_an_annotation_that_volcano_obeys_has_no_effect(key: str) -> None:
    """An annotation that only Volcano obeys causes a warning, on pods, templates and queues."""
    at = f'metadata.annotations["{key}"]'
    (said,) = suspects(pod({key: "x"}), CONFIG, placed=True)
    assert (said.field, said.doubtful) == (at, False)
    (below,) = suspects({"kind": "Job", "spec": {"template": pod({key: "x"})}}, CONFIG)
    assert below.field == f"spec.template.{at}"
    queue = {"kind": "Queue", "metadata": {"annotations": {key: "x"}}, "spec": {}}
    assert [each.field for each in suspects(queue, CONFIG)] == [at]


def test_volcanos_group_name_alone_makes_no_gang() -> None:
    """Volcano's annotation `group-name` alone does not put a pod into a gang. The warning about it
    names the annotation that does."""
    own, other = "scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name"
    (said,) = suspects(pod({own: "train"}), CONFIG)
    assert (said.field, said.doubtful) == (f'metadata.annotations["{own}"]', True)
    assert said.why.endswith(f'write {other}: "train"')
    assert found(pod({own: "train", other: "train"})) == []


def test_the_members_that_a_pod_names_do_not_count_in_its_gang() -> None:
    """A pod's annotation with the size of its gang causes a warning, because only the PodGroup's
    minimum counts."""
    key = "scheduling.volcano.sh/group-min-member"
    (said,) = suspects(pod({key: "4", "scheduling.k8s.io/group-name": "train"}), CONFIG)
    assert (said.field, said.doubtful) == (f'metadata.annotations["{key}"]', False)
    owner = {"kind": "Deployment", "metadata": {"annotations": {key: "4"}}}
    (lost,) = suspects(owner, CONFIG)
    assert (lost.field, lost.doubtful) == (said.field, False)
    assert lost.why != said.why


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"disruptionMode": {"all": {}}}, ["spec.disruptionMode"]),
        (
            {"disruptionMode": "PodGroup", "schedulingPolicy": {"basic": {}}},
            ["spec.disruptionMode"],
        ),
        ({"disruptionMode": {"all": {}}, "schedulingPolicy": {"gang": {"minCount": 2}}}, []),
        ({"disruptionMode": {"single": {}}, "schedulingPolicy": {"gang": {"minCount": 2}}}, []),
        ({"disruptionMode": {"single": {}}}, []),
        ({"networkTopology": {"mode": "hard"}}, ["spec.networkTopology"]),
        ({"networkTopology": {"mode": "soft"}}, []),
        ({"networkTopology": {"highestTierAllowed": 0}}, []),
        ({"networkTopology": {"mode": "hard", "highestTierName": "rack"}}, []),
        ({}, []),
    ],
)
def test_a_disruption_mode_without_a_gang(spec: dict[str, Any], fields: list[str]) -> None:
    """If a PodGroup is not a gang, a `disruptionMode` that evicts all of its pods together causes a
    warning."""
    document = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "spec": spec}
    assert [each.field for each in suspects(document, CONFIG)] == fields


def test_annotations_of_volcanos_agent_are_known() -> None:
    """An annotation that Volcano's agent reads on the node causes no warning."""
    notes = {f"volcano.sh/{name}": "x" for name in ("enable-quota-burst", "quota-burst-time")}
    assert found(pod(notes)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("gang-models", "any"), ("checkpoint-every", "30m"), ("eviction-notice", "5m")],
)
def test_our_annotations_are_read_in_pods_only(name: str, value: str) -> None:
    """Apportion's annotations for pods cause a warning on a PodGroup or a Job, but not on a pod or
    a pod template."""
    key = f"apportion.dev/{name}"
    notes = {"annotations": {key: value}}
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": notes}
    (said,) = suspects(group, CONFIG)
    assert (said.field, said.doubtful) == (f'metadata.annotations["{key}"]', False)
    assert found(pod({key: value})) == []
    job = {"kind": "Job", "spec": {"template": {"metadata": notes, "spec": {"containers": []}}}}
    assert found(job) == []
    (wrong,) = suspects(pod({key[:-1]: value}), CONFIG)
    assert key in wrong.why


def test_fields_of_a_queue_that_decide_nothing() -> None:
    """Fields of a Queue that have no effect cause a warning with their path, if they are set."""
    spec = {
        "weight": 2, "capability": {"cpu": 1}, "deserved": {"cpu": 1}, "parent": "all",
        "guarantee": {"resource": {"cpu": 1}}, "reclaimable": False, "priority": 3, "type": "x",
        "extendClusters": [{"name": "a"}], "dequeueStrategy": "fifo",
        "affinity": {"nodeGroupAffinity": {"preferred": ["a"]}},
    }  # fmt: skip
    said = list(suspects({"kind": "Queue", "spec": spec}, CONFIG))
    assert {each.field for each in said} == {f"spec.{name}" for name in ignored_fields.QUEUE_FIELDS}
    assert all(each.doubtful for each in said)
    unset: dict[str, Any] = {"type": "", "extendClusters": [], "affinity": None}
    assert list(of_queue({"kind": "Queue", "spec": unset})) == []


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("Queue", {"capability": {"volcano.sh/vgpu-memory-percentage": 50}}, "spec.capability"),
        ("Queue", {"deserved": {"enflame.com/gcu-core": 1}}, "spec.deserved"),
        ("Queue", {"capability": {"deviceclass/gpu.apportion.dev": 1}}, "spec.capability"),
        ("Queue", {"guarantee": {"resource": {"memory.deviceclass/a": 1}}}, "spec.guarantee.res"),
        ("ResourceQuota", {"hard": {"limits.enflame.com/gcu-memory": 1}}, "spec.hard"),
    ],
)
def test_a_limit_on_a_resource_that_is_not_counted(
    kind: str, spec: dict[str, Any], field: str
) -> None:
    """A limit on a device resource that no limit counts causes a warning. The API server enforces
    a quota of `requests.` itself."""
    (said,) = suspects({"kind": kind, "spec": spec}, CONFIG)
    assert said.doubtful
    assert said.field.startswith(field)
    hard = {"requests.enflame.com/gcu-memory": 1, "limits.enflame.com/drs-gcu": 1}
    assert list(suspects({"kind": "ResourceQuota", "spec": {"hard": hard}}, CONFIG)) == []


@pytest.mark.parametrize("path", QUEUE_AMOUNTS)
def test_a_typo_in_each_of_a_queues_amounts(path: str) -> None:
    """A misspelt resource causes a warning in every field of a Queue with amounts."""
    spec: dict[str, Any] = {"nvidia.com/gpumen": 1}
    for key in reversed(path.split(".")):
        spec = {key: spec}
    (said,) = suspects({"kind": "Queue", "spec": spec}, CONFIG)
    assert said.field == f'spec.{path}["nvidia.com/gpumen"]'


@pytest.mark.parametrize("name", ["pods", "ephemeral-storage", "hugepages-2Mi", "b.c/nic"])
def test_queues_divide_cpu_memory_and_devices(name: str) -> None:
    """Queues divide only CPU, memory and devices. A deserved or guaranteed amount of another
    resource causes a warning."""
    amounts = {name: 1, "cpu": 1, "memory": 1, "nvidia.com/gpu": 1, "apportion.dev/gpu-milli": 1}
    spec = {"capability": amounts, "deserved": amounts, "guarantee": {"resource": amounts}}
    fields = [each.field for each in suspects({"kind": "Queue", "spec": spec}, CONFIG)]
    assert fields == [f'spec.{path}["{name}"]' for path in ("deserved", "guarantee.resource")]


def test_a_typo_in_an_annotation_of_a_queue() -> None:
    """A misspelt annotation of a Queue causes a warning that names the right one."""
    right, wrong = "apportion.dev/card.deserved", "apportion.dev/cards.deserved"
    queue = {"kind": "Queue", "metadata": {"annotations": {wrong: "{}", right: "{}"}}, "spec": {}}
    (said,) = suspects(queue, CONFIG)
    assert said.field == f'metadata.annotations["{wrong}"]'
    assert right in said.why


@pytest.mark.parametrize(
    ("spec", "resources", "fields"),
    [
        ({"reclaimMinRuntime": "5m", "displayName": "ML", "priority": 3}, {}, []),
        ({"preemptMinRuntime": "5m"}, {}, ["preemptMinRuntime"]),
        (
            {},
            {"gpu": {"overQuotaWeight": 0.5}},
            [f"resources.{name}.overQuotaWeight" for name in ("gpu", "cpu", "memory")],
        ),
        ({}, {"cpu": {"limit": -1, "overQuotaWeight": 2}}, ["resources.cpu.overQuotaWeight"]),
        ({}, {"cpu": {"overQuotaWeight": 1}}, ["resources.cpu.limit"]),
        ({}, {"gpu": {"overQuotaWeight": float("inf")}, "cpu": 3}, None),
    ],
)
def test_fields_of_a_kai_queue_that_decide_nothing(
    spec: dict[str, Any], resources: dict[str, Any], fields: list[str] | None
) -> None:
    """A field of a KAI Queue that has no effect causes a warning. So does a limit of CPU or memory
    that is 0 or unset if the quota is too, because the pods can then request none of it."""
    free = {"limit": -1, "overQuotaWeight": 1}
    spec = {"resources": {"cpu": free, "memory": free, "gpu": free} | resources} | spec
    said = list(suspects({"apiVersion": KAI_QUEUE[0], "kind": "Queue", "spec": spec}, CONFIG))
    assert fields is None or [each.field for each in said] == [f"spec.{each}" for each in fields]


def test_every_field_of_a_queue_is_read_or_said_to_decide_nothing() -> None:
    """Every field of the newest version of Volcano's and KAI's Queues is either read, or listed as
    without effect."""
    rows = (
        row.strip().lstrip("+").split()[0] for row in FIELDS["Queue"].splitlines() if row.strip()
    )
    fields = {row.split(".")[1] for row in rows if row.startswith("spec.")}
    read = "weight capability parent deserved guarantee reclaimable priority dequeueStrategy"
    assert fields == {*read.split(), *ignored_fields.QUEUE_FIELDS}
    of_kai = {row.split(".")[1].split()[0] for row in KAI_FIELDS.split("\n") if "spec." in row}
    read = "displayName parentQueue priority reclaimMinRuntime resources"
    assert of_kai == {*read.split(), *ignored_fields.KAI_QUEUE_FIELDS}


@pytest.mark.parametrize(("limits", "slips"), [({}, 1), ({"cambricon.com/vmlu": 1}, 0)])
def test_memory_of_an_mlu_without_the_mlu(limits: dict[str, int], slips: int) -> None:
    """A request for MLU memory without a number of MLUs causes a warning: Apportion gives the pod a
    share, but HAMi gives the pod nothing."""
    document = pod()
    limits = limits | {"cambricon.com/mlu.smlu.vmemory": 4}
    document["spec"]["containers"][0]["resources"]["limits"] = limits
    assert len(found(document)) == slips


NAMESPACES = "unless the node's agent has --priority-namespace"


@pytest.mark.parametrize(
    ("value", "limits", "doubtful"),
    [
        ("0", {"nvidia.com/gpu": 1}, False),
        ("1", {"nvidia.com/gpu": 1}, False),
        (None, {"volcano.sh/vgpu-number": 1}, False),
        ("0", {}, False),
        ("0", {"huawei.com/Ascend310P": 1}, False),
        ("1", {"nvidia.com/gpu": 1, "nvidia.com/priority": 0}, True),
    ],
)
def test_the_priority_of_a_container_is_named(
    value: str | None, limits: dict[str, Any], doubtful: bool
) -> None:
    """The variable `CUDA_TASK_PRIORITY` causes a warning. The value 0 on an NVIDIA GPU needs
    permission. In all other cases, the variable has no effect."""
    env = [{"name": "A"}, {"name": "CUDA_TASK_PRIORITY", "value": value}]
    document = pod()
    document["spec"]["containers"][0] |= {"env": env, "resources": {"limits": limits}}
    (said,) = suspects(document, CONFIG)
    assert (said.field, said.doubtful) == ("spec.containers[0].env[1].value", doubtful)
    assert (NAMESPACES in said.why) == (value == "0" and "nvidia.com/gpu" in limits)


def test_a_priority_among_limits_needs_the_same_right() -> None:
    """A priority of 0 among a container's limits causes one warning, because it needs permission.
    Other priorities cause no warning."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/priority": "0"}
    document = pod()
    document["spec"]["containers"][0]["resources"]["limits"] = limits
    (said,) = suspects(document, CONFIG)
    field = 'spec.containers[0].resources.limits["nvidia.com/priority"]'
    assert (said.field, said.doubtful) == (field, False)
    assert NAMESPACES in said.why
    limits["nvidia.com/priority"] = "5"
    assert found(document) == []


def test_a_slot_is_no_amount() -> None:
    """The resource `apportion.dev/slot`, which the webhook adds, does not count as a device
    amount."""
    limits = {"tencent.com__vcuda_core": 10, "tencent.com__vcuda_memory": 4}
    limits["apportion.dev__slot"] = 1
    assert not found(pod(None, **limits))
