"""Tests of how settings of HAMi and Volcano become one configuration document."""

import json
from typing import Any

import pytest

from apportion.core.configuration.importing import Imported, Importing
from apportion.core.workloads.dialects.names import dialect_config


def imported(*files: dict[str, Any]) -> Imported:
    """Return the result of importing these files. Each file is named by its position."""
    importing = Importing(lambda text, _: json.loads(text))
    for at, content in enumerate(files):
        importing.add(str(at), content)
    return importing.result()


def notes(done: Imported) -> set[tuple[str, str]]:
    """Return the paths and reasons of all notes."""
    return {(note.path, note.why) for note in done.notes}


@pytest.mark.parametrize("names", [None, [], "volcano", [5], ["a", "a"]])
def test_without_usable_scheduler_names_only_apportion_is_served(names: object) -> None:
    """If `schedulerNames` is empty or not valid, the document serves only pods that name
    `apportion`, and a note says so."""
    done = imported({"schedulerNames": names})
    assert done.configuration.scheduler_names == ("apportion",)
    assert any(note.path == "schedulerNames" for note in done.notes)
    assert bool(done.errors) == bool(names)


def test_nodes_in_a_file_of_the_npu_plugin_have_no_effect() -> None:
    """The list `nodes` in the ConfigMap of HAMi's plugin for NPUs causes no error."""
    data = {"node-config.yaml": '{"nodes": []}'}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": data}
    assert imported(config_map).errors == ()


def test_scheduler_names_of_a_file_are_kept() -> None:
    """If a file names schedulers, the document serves those."""
    done = imported({"schedulerNames": ["volcano"]})
    assert (done.configuration.scheduler_names, done.notes) == (("volcano",), ())


@pytest.mark.parametrize(
    ("base", "replaced"),
    [
        ({"devicePlugin": {"disablecorelimit": "true"}}, "0: devicePlugin.disablecorelimit"),
        ({"nvidia": {"disablecorelimit": True}}, "0: nvidia.disablecorelimit"),
    ],
)
def test_a_later_default_replaces_an_earlier_core_limit(
    base: dict[str, Any], replaced: str
) -> None:
    """A later file with the default value of the core limit replaces the value of an earlier
    one."""
    later = {"devicePlugin": {"disablecorelimit": "false"}}
    done = imported(base, later)
    assert not done.configuration.nvidia.disable_core_limit
    assert ("devicePlugin.disablecorelimit", f"replaces the value of {replaced}") in notes(done)
    alone = imported(later)
    (note,) = (note for note in alone.notes if note.path == "devicePlugin.disablecorelimit")
    assert note.why.startswith("omitted")


def test_settings_that_are_equal_to_the_default_are_noted() -> None:
    """The document omits settings that are equal to the default, and a note names each of them."""
    section = {"defaultMemory": 0, "defaultCores": 20, "memoryFactor": 1, "deviceSplitCount": 0}
    done = imported({"nvidia": section})
    found = [path for path, why in notes(done) if why.startswith("omitted")]
    assert sorted(found) == ["nvidia.defaultMemory", "nvidia.memoryFactor"]
    assert [error.field for _, error in done.errors] == ["nvidia.deviceSplitCount"]


def test_a_later_empty_list_replaces_an_earlier_list() -> None:
    """A later empty list replaces an earlier list. Any other empty value is reported as without
    effect."""
    base = {"nodeconfig": [{"name": "n1"}], "nvidia": {"deviceSplitCount": 5}}
    done = imported(base, {"nodeconfig": [], "nvidia": {}})
    assert done.configuration.nodeconfig == ()
    assert done.configuration.nvidia.device_split_count == 5
    assert ("nodeconfig", "replaces the value of 0: nodeconfig") in notes(done)
    assert ("nvidia", "no effect: it is empty") in notes(done)


def test_F23_keys_that_volcano_never_uses_are_noted() -> None:
    """In files with Volcano's resource names, a note names each key that takes effect here, but not
    in Volcano. Default values need no note."""
    section = {
        "defaultMemory": 5000, "defaultCores": 0, "defaultGPUNum": 1, "overwriteEnv": True,
        "disableCoreLimit": False,
    }  # fmt: skip
    nodes = [{"name": "n1", "devicesplitcount": 5}, {"name": "n2", "devicememoryscaling": 1.8}]
    file = {"nvidia": section, "nodeconfig": nodes}
    volcanos = {"nvidia": {**section, "resourceCountName": "volcano.sh/vgpu-number"}}
    found = [note.path for note in imported(file | volcanos).notes if "Volcano" in note.why]
    assert found == [
        "nvidia.defaultMemory", "nvidia.overwriteEnv", "nodeconfig[1].devicememoryscaling",
    ]  # fmt: skip
    assert not [note for note in imported(file).notes if "Volcano" in note.why]


@pytest.mark.parametrize(
    ("key", "value"), [("disablecorelimit", "true"), ("memoryFactor", 0), ("defaultMem", 5000)]
)
def test_only_a_key_with_an_error_is_left_out(key: str, value: Any) -> None:
    """The error has the spelling of the file, and the other keys of the section are kept."""
    section = {"resourceCountName": "volcano.sh/vgpu-number", "deviceSplitCount": 20, key: value}
    done = imported({"nvidia": section})
    assert [error.field for _, error in done.errors] == [f"nvidia.{key}"]
    assert done.configuration.nvidia.device_split_count == 20
    assert not [note.path for note in done.notes if note.path == f"nvidia.{key}"]


@pytest.mark.parametrize("name", [None, "example.com/vgpu"])
def test_the_values_of_volcanos_plugin_are_imported(name: str | None) -> None:
    """Values of the chart of Volcano's device plugin set the same keys as its ConfigMaps, with
    Volcano's names as defaults. One note names the keys that install the plugin."""
    named = {"resourceCountName": name} if name else {}
    section = {**named, "deviceSplitCount": 20, "defaultMemory": 5000}
    nodes = {"enabled": True, "configs": [{"name": "n1", "devicememoryscaling": 1.8}]}
    values = {"deviceConfig": {"nvidia": section}, "nodeConfig": nodes, "image": {}, "cdi": {}}
    done = imported(values)
    assert not done.errors
    assert done.configuration.nvidia.device_split_count == 20
    assert [node.name for node in done.configuration.nodeconfig] == ["n1"]
    names = dialect_config(done.configuration).volcano_vgpu
    assert names.count == (name or "volcano.sh/vgpu-number")
    assert names.memory == "volcano.sh/vgpu-memory"
    assert [note.path for note in done.notes if note.path != "schedulerNames"] == [
        "image, cdi", "deviceConfig: nvidia.defaultMemory",
        "nodeConfig.configs[0].devicememoryscaling",
    ]  # fmt: skip
    off = imported(values | {"nodeConfig": nodes | {"enabled": False}})
    assert (off.errors, off.configuration.nodeconfig) == ((), ())


def test_objects_of_other_kinds_are_ignored() -> None:
    """One note names the kinds of a file's objects that are no ConfigMaps."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
    made = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {}}
    config = {"device-config.yaml": json.dumps({"nvidia": {"deviceSplitCount": 20}})}
    listed = {"items": [account, made, account, {"kind": "ConfigMap", "data": config}]}
    done = imported({"apiVersion": "v1", "kind": "List"} | listed)
    assert (done.errors, done.configuration.nvidia.device_split_count) == ((), 20)
    assert [note.path for note in done.notes if note.path != "schedulerNames"] == [
        "ServiceAccount, DaemonSet"
    ]


def test_a_part_that_is_left_out_is_named() -> None:
    """If a node's settings are left out because its name is not valid, an error names the
    node's entry."""
    done = imported({"nodeconfig": [{"name": 5, "devicesplitcount": 20}]})
    assert [(source, error.field) for source, error in done.errors] == [
        ("0", "nodeconfig[0].name"), ("0", "nodeconfig[0]"),
    ]  # fmt: skip


def test_the_chart_of_hami_writes_false_as_text() -> None:
    """HAMi's chart has `metaxsGPUTopologyAware: "false"` by default. It is taken as false."""
    done = imported({"metaxsGPUTopologyAware": "false"})
    assert not done.errors, done


@pytest.mark.parametrize("policy", ["topology-aware", "mutex", "binpack,numa"])
def test_F6_a_default_policy_that_only_pods_can_have_is_refused(policy: str) -> None:
    """A chain of device policies cannot be the default. The error names the pods' annotation."""
    defaults = {"gpuSchedulerPolicy": policy}
    done = imported({"scheduler": {"defaultSchedulerPolicy": defaults}})
    ((_, error),) = done.errors
    assert error.field == "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy"
    assert error.fix.endswith(f"hami.io/gpu-scheduler-policy: {policy}")


def test_F6_errors_of_names_and_choices_name_the_fix() -> None:
    """An empty resource name and an unknown MIG strategy are refused, with what to write."""
    done = imported({"resourceMem": "", "devicePlugin": {"migStrategy": "single"}})
    empty, unknown = (error for _, error in done.errors)
    assert (empty.field, unknown.field) == ("resourceMem", "devicePlugin.migStrategy")
    assert "mixed, none" in unknown.fix
    assert "regex" not in str(empty)
