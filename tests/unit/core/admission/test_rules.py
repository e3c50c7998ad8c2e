"""Tests of the admission rules, which admit a new pod with patches or reject the pod."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from apportion.core.admission import Admitted, Asked, Rejected, Rules, admit
from apportion.core.configuration import manifest_config, read_configuration
from apportion.core.workloads.reading import read_document
from apportion.core.workloads.schedulers import scheduler_names
from apportion_schemas import Configuration
from tests.support.kube_objects import kube_pod, share

ROOT = Path(__file__).resolve().parents[4]
WRITER = "system:serviceaccount:apportion:binder"


def rules(document: dict[str, Any] | None = None) -> Rules:
    configuration = read_configuration(document) if document else Configuration()
    names = scheduler_names(configuration)
    return Rules(
        config=manifest_config(configuration),
        names=names,
        overwrite_env=configuration.nvidia.overwrite_env,
        disable_core_limit=configuration.nvidia.disable_core_limit,
    )


def created(pod: dict[str, Any], under: Rules | None = None) -> Admitted | Rejected:
    """Return what the admission rules decide when a user creates this pod in namespace `team`."""
    return admit(Asked(operation="CREATE", pod=pod, namespace="team"), under or rules())


def admitted(pod: dict[str, Any], under: Rules | None = None) -> Admitted:
    """Return the verdict on a new pod. Fail the test if the rules reject the pod."""
    verdict = created(pod, under)
    assert isinstance(verdict, Admitted), verdict
    return verdict


def rejection(verdict: Admitted | Rejected) -> str:
    assert isinstance(verdict, Rejected), verdict
    return str(verdict.error)


def patched(pod: dict[str, Any], verdict: Admitted) -> dict[str, Any]:
    """Return the pod after the verdict's patches, as the API server applies them."""
    made = copy.deepcopy(pod)
    for patch in verdict.patches:
        assert patch["op"] in {"add", "replace"}
        *parents, last = (p.replace("~1", "/").replace("~0", "~") for p in patch["path"].split("/"))
        place: Any = made
        for part in parents[1:]:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            at = len(place) if last == "-" else int(last)
            place[at : at + (patch["op"] == "replace")] = [patch["value"]]
        else:
            place[last] = patch["value"]
    return made


def environment(pod: dict[str, Any], kind: str = "containers") -> list[dict[str, str]]:
    """Return each container's environment variables that concern GPUs."""
    return [
        {each["name"]: each["value"] for each in container.get("env", ()) if "GPU" in each["name"]
         or each["name"].startswith(("CUDA_", "NVIDIA_"))}
        for container in pod["spec"][kind]
    ]  # fmt: skip


def limits(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][container]["resources"]["limits"]
    return found


def samples() -> list[Any]:
    """Return every pod of the sample manifests as a test parameter named after its file."""
    found: list[Any] = []
    for path in sorted((ROOT / "examples").glob("*/*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "Pod":
                found.append(pytest.param(document, id=f"{path.stem}-{len(found)}"))
    return found


# ---------------------------------------------------------------- ownership


@pytest.mark.parametrize(
    "named", [{}, {"schedulerName": ""}, {"schedulerName": "default-scheduler"}]
)
def test_a_pod_that_asks_for_a_device_and_names_no_scheduler_is_ours(named: dict[str, str]) -> None:
    """A pod that requests a device without naming a scheduler gets Apportion's scheduler, even
    after the API server has set `default-scheduler`."""
    pod = kube_pod("p", share())
    del pod["spec"]["schedulerName"]
    pod["spec"] |= named
    verdict = admitted(pod)
    assert verdict.why == "taken"
    assert patched(pod, verdict)["spec"]["schedulerName"] == "apportion"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (kube_pod("p", {"cpu": "1"}, schedulerName="default-scheduler"), "no device"),
        (kube_pod("p", share(), schedulerName="other"), "of another scheduler"),
        (kube_pod("p", share(), labels={"hami.io/webhook": "ignore"}), "skipped"),
        (kube_pod("p", share(), labels={"apportion.dev/webhook": "ignore"}), "skipped"),
    ],
)
def test_what_is_no_business_of_ours_goes_through_unchanged(pod: dict[str, Any], why: str) -> None:
    """The webhook admits a pod without parsing it if the pod has no devices, names an unrelated
    scheduler, or has a label such as `hami.io/webhook: ignore`."""
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    assert admitted(pod) == Admitted(why)


@pytest.mark.parametrize("name", ["apportion", "volcano", "hami-scheduler"])
def test_a_scheduler_whose_place_we_take_stays_named(name: str) -> None:
    """The webhook leaves a pod's scheduler name unchanged if that scheduler is Apportion, or one
    that Apportion replaces."""
    pod = kube_pod("p", share(), schedulerName=name)
    assert admitted(pod) == Admitted("read")


def test_an_extended_scheduler_keeps_its_pods_and_what_it_minds() -> None:
    """If `extendedSchedulerNames` lists a pod's scheduler, the pod keeps that scheduler.

    The webhook only checks the pod's device amounts and fills in missing ones. The scheduler checks
    the rest of the pod."""
    under = rules({"extendedSchedulerNames": ["default-scheduler"]})
    pod = kube_pod("p", {"nvidia.com/gpumem": "3000"}, schedulerName="default-scheduler")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    pod["spec"]["priorityClassName"] = "unheard-of"
    verdict = admitted(pod, under)
    assert [patch["path"] for patch in verdict.patches] == [
        "/spec/containers/0/resources/limits/nvidia.com~1gpu"
    ]
    vcuda = kube_pod("p", {"tencent.com/vcuda-core": "100"}, schedulerName="default-scheduler")
    assert admitted(vcuda, under).patches == ()
    limits(pod)["nvidia.com/gpumem-percentage"] = "101"
    assert "from 1 to 100" in rejection(created(pod, under))


# ---------------------------------------------------------------- defaults


@pytest.mark.parametrize(
    ("asked", "filled"),
    [
        ({"nvidia.com/gpumem": "3000"}, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpucores": "30"}, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpumem-percentage": "50"}, {"nvidia.com/gpu": "1"}),
        ({"nvidia.com/gpumem-percentage": "100"},
         {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}),
        ({"volcano.sh/vgpu-memory": "3000"}, {"volcano.sh/vgpu-number": "1"}),
        ({"volcano.sh/vgpu-number": "2"}, {"volcano.sh/vgpu-cores": "100"}),
        ({"nvidia.com/gpu": "1"}, {}),
        ({"tencent.com/vcuda-core": "100"}, {"apportion.dev/slot": "1"}),
        ({"volcano.sh/gpu-memory": "4096"}, {"apportion.dev/slot": "1"}),
        ({"volcano.sh/gpu-number": "2"}, {}),
        ({"huawei.com/Ascend310P": "1"}, {}),
    ],
)  # fmt: skip
def test_D3_what_is_left_out_is_filled_in(asked: dict[str, str], filled: dict[str, str]) -> None:
    """The webhook sets missing amounts to HAMi's defaults, such as one GPU.

    If none of the pod's resource names has a related name for a device count, the webhook adds a
    request for one `apportion.dev/slot`."""
    pod = kube_pod("p", asked)
    assert limits(patched(pod, admitted(pod))) == asked | filled


def test_D3_defaults_are_those_of_the_configuration() -> None:
    """Missing amounts default to `defaultGPUNum`, `defaultMemory` and `defaultCores`. Memory is in
    units of `gpuMemoryFactor`."""
    nvidia = {"defaultGPUNum": 2, "defaultMemory": 5000, "defaultCores": 20, "gpuMemoryFactor": 10}
    pod = kube_pod("p", {"nvidia.com/priority": "0", "nvidia.com/gpu": "1"})
    under = rules({"nvidia": nvidia})
    assert limits(patched(pod, admitted(pod, under))) == limits(pod) | {
        "nvidia.com/gpumem": "500", "nvidia.com/gpucores": "20",
    }  # fmt: skip
    pod = kube_pod("p", {"nvidia.com/gpumem": "300"})
    assert limits(patched(pod, admitted(pod, under)))["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize("sample", samples())
def test_filling_in_changes_nothing_of_what_is_asked(sample: dict[str, Any]) -> None:
    """The webhook's defaults do not change how Apportion reads any sample pod. If the webhook runs
    again, it changes nothing."""
    under = rules()
    made = patched(sample, admitted(sample, under))
    (before,), (after,) = (read_document(pod, under.config).pods for pod in (sample, made))
    for draft in (before, after):
        high = {name: {"CUDA_TASK_PRIORITY": "0"} for name in draft.high_priority}
        assert draft.controls in ({}, high)  # as the agent sets it from the priority
    assert structs.replace(after, scheduler_name="", controls={}) == structs.replace(
        before, scheduler_name="", controls={}
    )
    assert admitted(made, under).patches == ()


def test_a_container_without_limits_gets_them() -> None:
    """A container without limits gets a `limits` object, because a JSON patch can only add below an
    existing path."""
    pod = kube_pod("p")
    pod["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpumem": "1000"}}
    made = patched(pod, admitted(pod))
    assert limits(made) == {"nvidia.com/gpu": "1"}


def test_an_init_container_that_takes_no_devices_is_filled_in_too() -> None:
    """The webhook also sets missing amounts of init containers, because the device plugin reads
    them."""
    pod = kube_pod("p", {"nvidia.com/gpumem": "3000"})
    init = {"name": "i", "image": "app", "resources": {"limits": {"nvidia.com/gpumem": "100"}}}
    pod["spec"]["initContainers"] = [init]
    made = patched(pod, admitted(pod))
    (filled,) = made["spec"]["initContainers"]
    assert filled["resources"]["limits"] == {"nvidia.com/gpumem": "100", "nvidia.com/gpu": "1"}


# ---------------------------------------------------------------- environment

HIDDEN = {"NVIDIA_VISIBLE_DEVICES": "none"}
FREED = {"GPU_CORE_UTILIZATION_POLICY": "disable"}
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def container(name: str, limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "app", "resources": {"limits": limits or {}}} | fields


def pod_of(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    pod = kube_pod("p", schedulerName="default-scheduler", **fields)
    pod["spec"]["containers"] = [*containers]
    return pod


def test_E2_overwriteEnv_hides_gpus_from_containers_that_ask_for_none() -> None:
    """With `overwriteEnv`, the webhook hides all GPUs from containers that request none. It does
    not change pods that name another scheduler."""
    under = rules({"nvidia": {"overwriteEnv": True}})
    mixed = pod_of(
        container("asks", share()),
        container("plain"),
        container("wants-all", env=[{"name": "A", "value": "b"}, *ALL]),
    )
    mixed["spec"]["initContainers"] = [container("init", env=[{"name": "A", "value": "b"}])]
    made = patched(mixed, admitted(mixed, under))
    assert environment(made) == [{}, HIDDEN, HIDDEN]
    assert environment(made, "initContainers") == [HIDDEN]
    without = pod_of(container("web", env=ALL))
    verdict = admitted(without, under)
    assert verdict.why == "no device"
    assert environment(patched(without, verdict)) == [HIDDEN]
    assert admitted(patched(without, verdict), under).patches == ()
    npu = pod_of(container("npu", {"huawei.com/Ascend310P": "1"}))
    assert environment(patched(npu, admitted(npu, under))) == [HIDDEN]


@pytest.mark.parametrize(
    "pod",
    [
        pod_of(container("c", securityContext={"privileged": True})),
        pod_of(container("c", {"nvidia.com/mig-1g.5gb": "1"})),
        pod_of(container("c", resources={"claims": [{"name": "gpu"}]})),
        pod_of(container("c"), labels={"hami.io/webhook": "ignore"}),
        kube_pod("p", schedulerName="other"),
    ],
)
def test_overwriteEnv_leaves_alone_who_gets_gpus_otherwise(pod: dict[str, Any]) -> None:
    """With `overwriteEnv`, the webhook does not change pods that get GPUs in another way.

    Examples are privileged pods, and pods with a MIG profile or a ResourceClaim."""
    assert admitted(pod, rules({"nvidia": {"overwriteEnv": True}})).patches == ()


def test_D4_disablecorelimit_frees_the_cores_of_containers_that_do_not_say_it() -> None:
    """With `disablecorelimit`, the webhook removes the core limit of every container with a GPU,
    unless the container sets `GPU_CORE_UTILIZATION_POLICY` itself."""
    under = rules({"nvidia": {"disablecorelimit": True}})
    force = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    pod = pod_of(
        container("a", share(1000, 10)), container("b", share(1000, 10), env=force), container("c")
    )
    made = patched(pod, admitted(pod, under))
    assert environment(made) == [FREED, {"GPU_CORE_UTILIZATION_POLICY": "force"}, {}]
    assert admitted(made, under).patches == ()


def test_D3_defaults_are_filled_in_beside_devices_of_another_vendor() -> None:
    """A container that requests only memory of a GPU gets one GPU, even if another container
    requests another vendor's device."""
    pod = pod_of(
        container("a", {"nvidia.com/gpumem": "1000"}), container("b", {"hygon.com/dcunum": "1"})
    )
    made = patched(pod, admitted(pod))
    first, second = (each["resources"]["limits"] for each in made["spec"]["containers"])
    assert (first["nvidia.com/gpu"], "nvidia.com/gpu" in second) == ("1", False)


def test_F3_the_priority_of_a_container_is_in_its_environment() -> None:
    """The webhook sets `CUDA_TASK_PRIORITY` from `nvidia.com/priority`, as HAMi's webhook does.
    HAMi's device plugin does not set this variable. A value in the manifest is kept."""
    first, low = {"nvidia.com/priority": "0"}, {"nvidia.com/priority": "5"}
    own = [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]
    pod = pod_of(
        container("a", share(1000, 10) | first),
        container("b", share(1000, 10) | low),
        container("c", share(1000, 10) | first, env=own),
        container("d", share(1000, 10)),
    )
    made = patched(pod, admitted(pod))
    said = [each.get("CUDA_TASK_PRIORITY") for each in environment(made)]
    assert said == ["0", "5", "1", None]
    assert admitted(made).patches == ()


def test_D4_each_variable_of_an_empty_environment_is_kept() -> None:
    """The webhook can set several variables of a container that has no environment."""
    under = rules({"nvidia": {"disableCoreLimit": True}})
    pod = pod_of(container("a", share(1000, 10) | {"nvidia.com/priority": "5"}))
    (said,) = environment(patched(pod, admitted(pod, under)))
    assert said == {"CUDA_TASK_PRIORITY": "5", "GPU_CORE_UTILIZATION_POLICY": "disable"}


def test_hamis_webhook_fills_in_what_the_plugins_of_vendors_read() -> None:
    """The webhook adds all memory and cores to requests for whole Moore Threads GPUs, and all cores
    to requests for several Iluvatar GPUs.

    It sets SOL_CONTINER_NAME to the container's name where a container requests Iluvatar GPUs.
    Values in the manifest are kept."""
    env = [{"name": "SOL_CONTINER_NAME", "value": "own"}]
    one = {"iluvatar.ai/BI-V150-vgpu": "1", "iluvatar.ai/BI-V150.vMem": "8"}
    pod = pod_of(
        container("a", {"mthreads.com/vgpu": "2"}),
        container("b", {"iluvatar.ai/BI-V150-vgpu": "2"}),
        container("c", one, env=env),
        container("d"),
    )
    under = rules({"nvidia": {"overwriteEnv": True}})
    made = patched(pod, admitted(pod, under))
    assert limits(made, 0) == {
        "mthreads.com/vgpu": "2", "mthreads.com/sgpu-memory": "192", "mthreads.com/sgpu-core": "32",
    }  # fmt: skip
    assert limits(made, 1) == {"iluvatar.ai/BI-V150-vgpu": "2", "iluvatar.ai/BI-V150.vCore": "200"}
    assert limits(made, 2) == one
    named = [
        [each["value"] for each in each.get("env", ()) if each["name"] == "SOL_CONTINER_NAME"]
        for each in made["spec"]["containers"]
    ]
    assert named == [[], ["b"], ["own"], []]
    assert [each["NVIDIA_VISIBLE_DEVICES"] for each in environment(made)] == ["none"] * 4
    assert admitted(made, under).patches == ()


@pytest.mark.parametrize("notes", [{}, {"huawei.com/vnpu-mode": "hami-core"}])
def test_F1_one_npu_of_a_module_becomes_two(notes: dict[str, str]) -> None:
    """The webhook writes 2 where a container requests one Ascend 910C, as HAMi's webhook does,
    because HAMi's plugin (1.3 and newer) fails a container with another number of NPUs than its
    annotation has. Memory of one die, and other numbers, are kept."""
    name = "huawei.com/Ascend910C"
    pod = pod_of(
        container("a", {name: "1"}),
        container("b", {name: "2"}),
        *(() if notes else (container("c", {name: "1", f"{name}-memory": "16384"}),)),
    )
    pod["metadata"]["annotations"] = notes
    pod["spec"]["containers"][0]["resources"]["requests"] = {name: "1"}
    made = patched(pod, admitted(pod))
    assert limits(made, 0) == made["spec"]["containers"][0]["resources"]["requests"] == {name: "2"}
    assert [limits(made, at) for at in range(1, len(made["spec"]["containers"]))] == [
        limits(pod, at) for at in range(1, len(pod["spec"]["containers"]))
    ]
    assert admitted(made).patches == ()


def test_the_environment_is_nobodys_business_by_default() -> None:
    """By default the webhook leaves the environment of containers unchanged."""
    pod = pod_of(container("a", share()), container("b", env=ALL))
    assert patched(pod, admitted(pod))["spec"]["containers"] == pod["spec"]["containers"]


# ---------------------------------------------------------------- rejections


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (
            kube_pod("p", share() | {"nvidia.com/gpumem-percentage": "101"}),
            "is not a percentage from 1 to 100; write 1 to 100, or remove it to request all memory",
        ),
        (
            kube_pod("p", share() | {"volcano.sh/vgpu-memory": "1"}),
            "use one dialect for all amounts of a pod",
        ),
        (kube_pod("p", share(), nodeName="n1"), "already assigns the pod; remove it"),
        (kube_pod("p", {"tencent.com/vcuda-core": "150"}), "write 100 or 200"),
        (kube_pod("p", {"nvidia.com/gpu": "1.5"}), "is a fraction; write a whole number"),
    ],
)
def test_a_contradiction_is_rejected_with_its_fix(pod: dict[str, Any], words: str) -> None:
    """The webhook rejects contradictory amounts, and its message suggests the same fix as
    `apportion submit`."""
    assert words in rejection(created(pod))


def test_a_name_that_is_yet_to_be_made_is_no_fault() -> None:
    """The webhook admits a pod from a controller before the pod has a name and a namespace."""
    pod = kube_pod("p", share())
    pod["metadata"] = {"generateName": "web-7f9c-"}
    assert admitted(pod).why == "read"


@pytest.mark.parametrize(
    "pod",
    [None, [], {}, {"spec": None}, {"spec": {"containers": "x"}}, {"spec": {"containers": [7]}}],
)
def test_whatever_it_is_it_ends_in_an_answer(pod: Any) -> None:
    """The webhook admits a malformed object that requests no device."""
    assert created(pod) == Admitted("no device")


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulerName": "apportion"},
        {"schedulerName": "apportion", "containers": [None]},
        {"schedulerName": "apportion", "containers": [{"name": "c", "resources": []}]},
    ],
)
def test_a_broken_pod_of_ours_is_rejected(spec: dict[str, Any]) -> None:
    """The webhook rejects a malformed pod that Apportion would schedule, and names the field."""
    assert "spec" in rejection(created({"metadata": {}, "spec": spec}))


# ---------------------------------------------------------------- our own annotations


def test_nobody_creates_a_pod_with_our_annotations() -> None:
    """No account may create a pod with Apportion's annotations, even if the pod has an ignore label
    or requests no device."""
    for more in ({}, {"labels": {"hami.io/webhook": "ignore"}}):
        pod = kube_pod("p", {}, annotations={"apportion.dev/shares": "[]"}, **more)
        pod["spec"]["schedulerName"] = "default-scheduler"
        assert 'metadata.annotations["apportion.dev/shares"]' in rejection(created(pod))


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"a": "1"}), ({"a": "1"}, {"a": "2"}), ({"a": "1"}, {})]
)
def test_only_our_binder_changes_them(before: dict[str, str], after: dict[str, str]) -> None:
    """Only the binder may add, change or remove Apportion's annotations. Other accounts may change
    everything else of a pod."""
    old, new = (
        kube_pod("p", annotations={f"apportion.dev/{k}": v for k, v in notes.items()})
        for notes in (before, after)
    )
    asked = Asked(operation="UPDATE", pod=new, before=old, user=f"{WRITER}-2")
    assert 'metadata.annotations["apportion.dev/a"]' in rejection(admit(asked, rules()))
    ours = structs.replace(asked, user=WRITER)
    assert isinstance(admit(ours, rules()), Admitted)
    labelled = structs.replace(asked, pod={**old, "metadata": {**old["metadata"], "labels": {}}})
    assert isinstance(admit(labelled, rules()), Admitted)


@pytest.mark.parametrize("operation", ["CONNECT", "DELETE"])
def test_what_is_neither_created_nor_changed_is_not_looked_at(operation: str) -> None:
    """The webhook checks only creates and updates, and admits every other operation."""
    forged = kube_pod("p", {}, annotations={"apportion.dev/shares": "[]"})
    for pod in (kube_pod("p", {"nvidia.com/gpu": "1"}), forged):
        assert created(pod) != Admitted("skipped")
        asked = Asked(operation=operation, pod=pod, namespace="team")
        assert admit(asked, rules()) == Admitted("skipped")
