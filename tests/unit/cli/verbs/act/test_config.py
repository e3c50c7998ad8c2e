"""Tests of `apportion config check` and `config import`."""

import json
from pathlib import Path

from click.testing import CliRunner

from apportion.cli.verbs.act.config import command
from tests.support.golden import Golden

CHART = """
nvidia: {resourceCountName: nvidia.com/gpu, libCudaLogLevel: 1, gpuCorePolicy: default}
hygon: {resourceCountName: hygon.com/dcunum}
"""


def test_what_has_no_effect_is_named_and_nothing_is_wrong(golden: Golden, tmp_path: Path) -> None:
    """`config check` lists settings without effect on standard error. The configuration still
    counts as valid."""
    file = tmp_path / "device-config.yaml"
    file.write_text(CHART)
    done = CliRunner().invoke(command, ["check", str(file)])
    assert (done.exit_code, ": valid\n" in done.stdout) == (0, True)
    named = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert named == ["nvidia.libCudaLogLevel", "nvidia.gpuCorePolicy", "hygon"]
    golden({"device-config.yaml": done.stderr})


VALUES = """
resourceName: nvidia.com/vgpu
schedulerName: hami-scheduler
scheduler:
  defaultSchedulerPolicy: {nodeSchedulerPolicy: spread, gpuSchedulerPolicy: topology-aware}
  overwriteEnv: "true"
  leaderElect: true
  turbo: true
devicePlugin:
  deviceSplitCount: 5
  deviceMemoryScaling: 1.5
  disablecorelimit: "true"
  runtimeClassName: nvidia
  nvidiaNodeSelector: {gpu: "on"}
  nodeConfiguration:
    config: '{"nodeconfig": [{"name": "n1", "operatingmode": "mig"}]}'
devices: {nvidia: {gpuCorePolicy: force}, ascend: {hamiVnpuCore: false, runtimeClassName: npu}}
"""
CONFIG_MAPS = r"""
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: hami-scheduler-device}
  data:
    device-config.yaml: |
      nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCount: 10, libCudaLogLevel: 1}
      hygon: {resourceCountName: hygon.com/dcunum}
      frobnicate: 1
    notes.txt: "a: b"
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: volcano-scheduler-configmap}
  data:
    volcano-scheduler.conf: |
      actions: "enqueue, allocate, backfill"
      tiers:
      - plugins:
        - name: gang
        - name: deviceshare
          enablePredicate: true
          arguments:
            deviceshare.VGPUEnable: true
            deviceshare.SchedulePolicy: binpack
            deviceshare.ScheduleWeight: 10
            deviceshare.GPUExclusiveRules: [{app: a}]
            deviceshare.Unknown: 1
"""


def test_import_names_every_key_that_it_does_not_take(golden: Golden, tmp_path: Path) -> None:
    """`config import` converts chart values and ConfigMaps. It names the keys that have no effect,
    and leaves out unknown and unsupported keys. If two files set the same key, the later file
    counts."""
    values, maps = tmp_path / "values.yaml", tmp_path / "maps.yaml"
    values.write_text(VALUES)
    maps.write_text(CONFIG_MAPS)
    first = CliRunner().invoke(command, ["import", str(values)])
    both = CliRunner().invoke(command, ["import", str(values), str(maps), "--json"])
    document, answer = json.loads(first.stdout), json.loads(both.stdout)
    assert (first.exit_code, both.exit_code) == (1, 1)
    assert document["nvidia"] == {
        "resourceCountName": "nvidia.com/vgpu", "overwriteEnv": True, "deviceSplitCount": 5,
        "deviceMemoryScaling": 1.5, "disableCoreLimit": True,
    }  # fmt: skip
    assert document["nodeconfig"] == [{"name": "n1", "operatingmode": "mig"}]
    assert (document["policy"], document["schedulerNames"]) == ({"nodes": "spread"}, ["apportion"])
    assert answer["configuration"]["policy"] == {"nodes": "binpack", "devices": "binpack"}
    assert answer["configuration"]["nvidia"]["resourceCountName"] == "nvidia.com/gpu"
    assert {path.rpartition(": ")[2] for path in answer["left_out"]} == {
        "scheduler.turbo", "devicePlugin.runtimeClassName", "devices.nvidia.gpuCorePolicy",
        "devices.ascend.runtimeClassName", "frobnicate", 'data["notes.txt"]',
        "deviceshare.GPUExclusiveRules", "deviceshare.Unknown",
    }  # fmt: skip
    golden({
        "values.yaml": first.stderr.replace(f"{tmp_path}/", ""),
        "values.yaml maps.yaml": both.stderr.replace(f"{tmp_path}/", ""),
    })  # fmt: skip


def test_what_import_prints_can_be_checked(tmp_path: Path) -> None:
    """The printed document is valid, and importing it again changes nothing."""
    file, made = tmp_path / "values.yaml", tmp_path / "cluster.json"
    file.write_text(VALUES)
    made.write_text(CliRunner().invoke(command, ["import", str(file)]).stdout)
    assert CliRunner().invoke(command, ["check", str(made)]).exit_code == 0
    again = CliRunner().invoke(command, ["import", str(made)])
    assert (again.exit_code, again.stdout, again.stderr) == (0, made.read_text(), "")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Text in a ConfigMap that is no YAML is an error, and other keys are still imported."""
    file = tmp_path / "map.yaml"
    bad = {
        "kind": "ConfigMap",
        "data": {"device-config.yaml": "{", "config.json": '{"policy": {}}'},
    }
    file.write_text(json.dumps(bad))
    done = CliRunner().invoke(command, ["import", str(file)])
    assert (done.exit_code, 'data["device-config.yaml"]' in done.stderr) == (1, True)
