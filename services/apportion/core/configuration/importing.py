"""Collect a configuration document from files of HAMi's and Volcano's charts and ConfigMaps.

Sources: `charts/hami/values.yaml` of HAMi 2.4 to 2.10, Volcano's `volcano-vgpu-device-config`, the
values of the chart of Volcano's device plugin, and the arguments of Volcano's plugin `deviceshare`.
Invariant: every key of a file is in the document, in a note or in an error. Of objects that are no
ConfigMaps, a note has the kinds."""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from apportion.core.configuration.collect_errors import remove_errors
from apportion.core.configuration.keys import KEYS
from apportion.core.configuration.reading import passed_over, read_configuration
from apportion.core.workloads.dialects import chart
from apportion.core.workloads.dialects.names import VOLCANO_VGPU, original_names
from apportion.core.workloads.document import ManifestError, below, part, within
from apportion_schemas import Configuration

Parse = Callable[[str, str], object]  # a text and its path; raises ManifestError

SCHEDULERS: Final = "schedulerNames"
# keys of HAMi's chart, and the keys of our document that they set
_MOVED: Final = {
    "resourceName": "nvidia.resourceCountName",
    "resourceMem": "nvidia.resourceMemoryName",
    "resourceMemPercentage": "nvidia.resourceMemoryPercentageName",
    "resourceCores": "nvidia.resourceCoreName",
    "resourcePriority": "nvidia.resourcePriorityName",
    "scheduler.defaultMem": "nvidia.defaultMemory",
    "scheduler.defaultCores": "nvidia.defaultCores",
    "scheduler.defaultGPUNum": "nvidia.defaultGPUNum",
    "scheduler.overwriteEnv": "nvidia.overwriteEnv",
    "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": "policy.nodes",
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": "policy.devices",
    "devicePlugin.deviceSplitCount": "nvidia.deviceSplitCount",
    "devicePlugin.deviceMemoryScaling": "nvidia.deviceMemoryScaling",
    "devicePlugin.deviceCoreScaling": "nvidia.deviceCoreScaling",
    "devicePlugin.migStrategy": "nvidia.migStrategy",
    "devicePlugin.disablecorelimit": "nvidia.disableCoreLimit",
    "devicePlugin.enableNumaTopology": "nvidia.enableNumaTopology",
    "devicePlugin.passDeviceSpecsEnabled": "nvidia.passDeviceSpecs",
    "devicePlugin.preConfiguredDeviceMemory": "nvidia.preConfiguredDeviceMemory",
    "devicePlugin.runtimeClassName": "nvidia.runtimeClassName",
    "devices.nvidia.gpuCorePolicy": "nvidia.gpuCorePolicy",
    "devices.nvidia.libCudaLogLevel": "nvidia.libCudaLogLevel",
    "devices.ascend.hamiVnpuCore": "vnpus.hamiVnpuCore",
    "mluResourceName": "cambricon.resourceCountName",
    "mluResourceMem": "cambricon.resourceMemoryName",
    "mluResourceCores": "cambricon.resourceCoreName",
    "dcuResourceName": "hygon.resourceCountName",
    "dcuResourceMem": "hygon.resourceMemoryName",
    "dcuResourceCores": "hygon.resourceCoreName",
    "metaxResourceName": "metax.resourceVCountName",
    "metaxResourceMem": "metax.resourceVMemoryName",
    "metaxResourceCore": "metax.resourceVCoreName",
    "metaxsGPUTopologyAware": "metax.sgpuTopologyAware",
    "enflameResourceNameVGCU": "enflame.resourceNameVGCU",
    "enflameResourceNameVGCUPercentage": "enflame.resourceNameVGCUPercentage",
    "enflameResourceNameDRSGCU": "enflame.resourceNameDRSGCU",
    "enflameResourceNameGCUMemory": "enflame.resourceNameGCUMemory",
    "enflameResourceNameGCUCore": "enflame.resourceNameGCUCore",
    "kunlunResourceName": "kunlun.resourceCountName",
    "kunlunResourceVCountName": "kunlun.resourceVCountName",
    "kunlunResourceVMemoryName": "kunlun.resourceVMemoryName",
    "vastaiResourceName": "vastai.resourceCountName",
    "birenResourceName": "biren.resourceCountName",
    "iluvatarResourceName": "iluvatar.resourceCountName",
    "iluvatarResourceMem": "iluvatar.resourceMemoryName",
    "iluvatarResourceCore": "iluvatar.resourceCoreName",
}
# The chart writes these values unquoted into its files.
_BOOLEANS: Final = frozenset(
    ("nvidia.overwriteEnv", "nvidia.disableCoreLimit", "metax.sgpuTopologyAware")
)
_CORE_LIMIT: Final = ("disableCoreLimit", "disablecorelimit")  # two spellings of one key
_INSTALLS: Final = "it installs HAMi; see values.yaml of Apportion's chart for such settings"
_OPTIONS: Final = "command lines are not imported; set the configuration key of the option instead"
_MONITORS: Final = "it concerns HAMi's metrics; see docs/tasks/monitor.md"
_DRIVER: Final = "Apportion's agent passes devices to containers in its own way"
_WEBHOOK: Final = "it concerns HAMi's webhook; see docs/tasks/webhook.md"
_NAMES: Final = (
    "each pod names its scheduler; list the names that Apportion serves in schedulerNames"
)
_OTHERS: Final = "Apportion's list of supported devices is built in"
# Keys of HAMi's chart without effect here, with all keys below them, by the reason.
_NOTHING: Final = {
    path: why
    for why, paths in (
        (_INSTALLS, """
            global nameOverride fullnameOverride namespaceOverride imagePullSecrets version
            podSecurityPolicy mockDevicePlugin dra hami-dra scheduler.nodeName
            scheduler.nodeLabelSelector scheduler.nodeSelector scheduler.livenessProbe
            scheduler.leaderElect scheduler.replicas scheduler.kubeScheduler.enabled
            scheduler.kubeScheduler.image scheduler.kubeScheduler.imageTag
            scheduler.kubeScheduler.imagePullPolicy scheduler.kubeScheduler.resources
            scheduler.extender.image scheduler.extender.imagePullPolicy
            scheduler.extender.resources scheduler.nodeLockExpire scheduler.podAnnotations
            scheduler.tolerations scheduler.serviceAccountName scheduler.certManager
            scheduler.patch scheduler.service devicePlugin.enabled
            devicePlugin.gpuOperatorToolkitReady devicePlugin.image devicePlugin.imagePullPolicy
            devicePlugin.createRuntimeClass devicePlugin.service devicePlugin.pluginPath
            devicePlugin.libPath devicePlugin.podAnnotations devicePlugin.hostPID
            devicePlugin.hostNetwork devicePlugin.securityContext devicePlugin.nvidiaNodeSelector
            devicePlugin.nvidianodeSelector devicePlugin.tolerations devicePlugin.updateStrategy
            devicePlugin.resources devicePlugin.monitorimage devices.ascend.image
            devices.ascend.imagePullPolicy devices.ascend.nodeSelector devices.ascend.tolerations
            devices.ascend.resources
            """),
        (_OPTIONS, """
            scheduler.kubeScheduler.extraNewArgs scheduler.kubeScheduler.extraArgs
            scheduler.extender.extraArgs devicePlugin.extraArgs devicePlugin.extraEnvs
            devices.ascend.extraArgs
            """),
        (_MONITORS, """
            scheduler.metricsBindAddress devicePlugin.monitor devicePlugin.monitorctrPath
            devicePlugin.vgpuMonitor legacyMetrics prometheus
            """),
        (_DRIVER, """
            devicePlugin.deviceListStrategy devicePlugin.nvidiaHookPath
            devicePlugin.nvidiaDriverRoot devicePlugin.gdrcopyEnabled devicePlugin.gdsEnabled
            devicePlugin.mofedEnabled
            """),
        (_WEBHOOK, """
            scheduler.admissionWebhook scheduler.customWebhook
            scheduler.mutatingWebhookConfiguration scheduler.forceOverwriteDefaultScheduler
            """),
        (_NAMES, "schedulerName"),
        (_OTHERS, """
            devices.amd devices.awsneuron devices.kunlun devices.enflame devices.mthreads
            devices.vastai devices.biren devices.iluvatar devices.ascend.enabled
            devices.ascend.customresources
            """),
    )
    for path in paths.split()
}  # fmt: skip
_NODE_CONFIG: Final = "devicePlugin.nodeConfiguration.config"
_NODE_CONFIG_MAP: Final = "devicePlugin.nodeConfiguration.externalConfigName"
_DEVICE_CONFIG: Final = "device-config.content"
_NESTED: Final = {_NODE_CONFIG, _NODE_CONFIG_MAP, _DEVICE_CONFIG, "devices.ascend.runtimeClassName"}
_KNOWN: Final = {*_MOVED, *_NOTHING, *_NESTED}
_ROOTS: Final = {path.partition(".")[0] for path in _KNOWN}
_EXAMPLE_NODE: Final = "your-node-name"  # the only node in the chart's default file

# arguments of Volcano's plugin `deviceshare` that need no setting here
_SHARE: Final = "deviceshare."
_ARGUMENTS: Final = {
    "GPUSharingEnable": "Apportion always reads the resource names that this argument enables",
    "GPUNumberEnable": "Apportion always reads the resource names that this argument enables",
    "VGPUEnable": "Apportion always reads the resource names that this argument enables",
    "AscendMindClusterVNPUEnable": "Apportion always reads the resource names that it supports",
    "AscendHAMiVNPUEnable": "Apportion always reads the resource names that it supports",
    "NodeLockEnable": "Apportion locks a node whenever its device plugin needs it",
    "KnownGeometriesCMName": "import that ConfigMap, too",
    "KnownGeometriesCMNamespace": "import that ConfigMap, too",
}
_UNUSED: Final = {
    "nvidia.defaultMemory", "nvidia.defaultCores", "nvidia.defaultGPUNum",
    "nvidia.deviceMemoryScaling", "nvidia.overwriteEnv", "nvidia.disableCoreLimit",
}  # fmt: skip
_DEFAULT: Final = "omitted: equal to the default"
_KEYS: Final = {key.path: key.path for key in KEYS} | {
    f"{key.path.partition('.')[0]}.{key.also}": key.path for key in KEYS if key.also
}
_TAKES_EFFECT: Final = "Volcano reads this key but never uses it; here it takes effect"
_DIALECT: Final = "nvidia.dialect"
_NAMES_RESOURCES: Final = {
    f"resource{each}Name" for each in ("Count", "Memory", "MemoryPercentage", "Core")
}
# keys of the chart of Volcano's device plugin
_DEVICES: Final = "deviceConfig"
_NODES: Final = "nodeConfig"
_PLUGIN: Final = {
    "namespace", "image", "monitor", "rbac", "daemonset", "hostPaths", "nodeSelector", "affinity",
    "tolerations", "cdi",
}  # fmt: skip
_OF_PLUGIN: Final = "no effect: these keys install Volcano's device plugin"
_OTHER_KINDS: Final = "no effect: only ConfigMaps are imported, and no command-line options"
_SCHEDULER_FILE: Final = "volcano-scheduler.conf"
_FILES: Final = {
    "device-config.yaml", "config.json", "device-node-config.yaml", "node-config.yaml",
    _SCHEDULER_FILE,
}  # fmt: skip
_ACTIONS: Final = "no effect: preemption is always on here; see docs/tasks/preemption.md"
_VOLCANO: Final = "only deviceshare's arguments are imported from Volcano's scheduler"


class Note(NamedTuple):
    """A key that has no effect or was replaced: its file, its path and the reason."""

    source: str
    path: str
    why: str


class Imported(NamedTuple):
    """The configuration, the keys without effect, and the keys that were left out as errors."""

    configuration: Configuration
    notes: tuple[Note, ...]
    errors: tuple[tuple[str, ManifestError], ...]  # each with its file


class Importing:
    """Collects one document from several files; a later file replaces keys of an earlier one."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._document: dict[str, Any] = {}
        self._origins: dict[str, tuple[str, str]] = {}  # key of the document: file and its key
        self._notes: list[Note] = []
        self._errors: list[tuple[str, ManifestError]] = []
        self._kinds: dict[str, dict[str, None]] = {}  # of other objects, by file

    def add(self, source: str, content: object) -> None:
        """Add a file: chart values, a ConfigMap, a list of these, or a device configuration."""
        try:
            document = chart.an_object(content, "document")
            if isinstance(document.get("items"), list):
                for item in document["items"]:
                    self.add(source, item)
            elif document.get("kind") == "ConfigMap":
                self._config_map(source, document)
            elif isinstance(document.get("kind"), str) and document.get("apiVersion"):
                self._kinds.setdefault(source, {})[document["kind"]] = None
            elif {_DEVICES, _NODES} & document.keys():
                self._plugin_values(source, document)
            elif _ROOTS & document.keys():
                for path, value in _leaves(document):
                    try:
                        self._value(source, path, value)
                    except ManifestError as error:
                        self._errors.append((source, error))
            else:
                self._take(source, document, "")
        except ManifestError as error:
            self._errors.append((source, error))

    def result(self) -> Imported:
        """Return the configuration. Unless set, it serves only pods that name `apportion`.

        Raises ManifestError if a part with an error cannot be left out."""
        self._notes += [
            Note(source, ", ".join(kinds), _OTHER_KINDS) for source, kinds in self._kinds.items()
        ]
        left, found, parts = remove_errors(self._document)
        configuration = read_configuration(left)
        if not configuration.scheduler_names:
            why = "set to [apportion], so that only pods that name it are moved"
            self._notes.append(Note("", SCHEDULERS, why))
            names = [error for error in found if error.field.startswith(SCHEDULERS)]
            left, found, parts = remove_errors(self._document | {SCHEDULERS: ["apportion"]})
            found = names + found
            configuration = read_configuration(left)
        for error in (*found, *parts):
            source, path = self._origin(error.field)
            moved = ManifestError(path, error.value, error.problem, error.fix)
            self._errors.append((source, moved))
        kept = msgspec.to_builtins(configuration)  # without defaults
        for target in filter(_KEYS.__contains__, self._origins):
            sets, keeps = (
                part(document, *path.split(".")[:-1]).keys() & {path.rpartition(".")[2]}
                for document, path in ((left, target), (kept, _KEYS[target]))
            )
            if sets and not keeps:
                self._notes.append(Note(*self._origin(target), _DEFAULT))
        for passed in passed_over(left):
            self._notes.append(Note(*self._origin(passed.path), f"no effect: {passed.why}"))
        of_volcano = original_names(configuration.nvidia) is VOLCANO_VGPU or any(
            path.startswith((_DEVICES, _NODES)) for _, path in self._origins.values()
        )
        if of_volcano:
            used = [
                key for key in self._origins if key in _UNUSED
                and str(part(left, "nvidia").get(key.partition(".")[2]))
                not in {"None", "0", "1", "False"}
            ] + [
                f"nodeconfig[{at}].devicememoryscaling"
                for at, node in enumerate(left.get("nodeconfig") or ())
                if node.get("devicememoryscaling") not in (None, 1)
            ]  # fmt: skip
            self._notes += [Note(*self._origin(key), _TAKES_EFFECT) for key in used]
        return Imported(configuration, tuple(self._notes), tuple(self._errors))

    def _origin(self, field: str) -> tuple[str, str]:
        for end in range(len(field), 0, -1):  # the longest prefix that a file set
            if field[:end] in self._origins and field[end : end + 1] in {"", ".", "["}:
                source, path = self._origins[field[:end]]
                return source, path + field[end:]
        below_it = [key for key in self._origins if key.startswith(f"{field}.")]
        return (self._origins[below_it[0]][0], field) if below_it else ("", field)

    def _config_map(self, source: str, document: dict[str, Any]) -> None:
        for key in sorted(document.keys() - {"apiVersion", "kind", "metadata", "data"}):
            self._unknown(source, key)
        for key, text in chart.an_object(document.get("data") or {}, "data").items():
            path = within("data", key)
            try:
                if key not in _FILES:
                    self._unknown(source, path)
                    continue
                content = chart.an_object(self._parse(str(text), path), path)
                if key == _SCHEDULER_FILE:
                    self._scheduler(source, content, path)
                else:
                    self._take(source, content, path)
            except ManifestError as error:
                self._errors.append((source, error))

    def _plugin_values(self, source: str, document: dict[str, Any]) -> None:
        if idle := ", ".join(key for key in document if key in _PLUGIN):
            self._notes.append(Note(source, idle, _OF_PLUGIN))
        for key in sorted(document.keys() - _PLUGIN - {_DEVICES, _NODES}):
            self._unknown(source, key)
        if devices := document.get(_DEVICES):
            if _NAMES_RESOURCES & part(devices, "nvidia").keys():
                # Overrides of values may leave out names that the chart's defaults have.
                self._put(source, _DEVICES, _DIALECT, "volcano-vgpu")
            self._take(source, chart.an_object(devices, _DEVICES), _DEVICES)
        nodes = chart.an_object(document.get(_NODES) or {}, _NODES)
        for key in sorted(nodes.keys() - {"enabled", "configs"}):
            self._unknown(source, below(_NODES, key))
        if not nodes.get("enabled", True):
            self._notes.append(Note(source, _NODES, "no effect: it is not enabled"))
        elif "configs" in nodes:
            self._put(source, f"{_NODES}.configs", "nodeconfig", nodes["configs"])

    def _value(self, source: str, path: str, value: Any) -> None:
        if path in _MOVED:
            target = _MOVED[path]
            if target in _BOOLEANS and value in ("true", "false", False):
                value = value == "true"
            if target == "nvidia.disableCoreLimit" and value is False:
                # Remove settings of earlier files that switch the core limit off. No value
                # replaces them, because `gpuCorePolicy: disable` may still apply.
                held = part(self._document, "nvidia")
                earlier = [key for key in _CORE_LIMIT if held.get(key, False) is not False]
                for key in earlier:
                    del held[key]
                    self._forget(source, path, f"nvidia.{key}")
                if not earlier:
                    self._notes.append(Note(source, path, _DEFAULT))
                return
            self._put(source, path, target, value)
        elif path in _NOTHING:
            self._notes.append(Note(source, path, f"no effect: {_NOTHING[path]}"))
        elif path in {_NODE_CONFIG, _DEVICE_CONFIG}:
            self._text(source, path, value)
        elif path not in _NESTED:
            self._unknown(source, path)
        elif path == _NODE_CONFIG_MAP and value:
            self._notes.append(Note(source, path, f"import the ConfigMap {value}, too"))
        else:
            chart.expect(value, ("", None), path, "remove it, and set runtimeClassName in the pod")
            self._notes.append(Note(source, path, "no effect: it is empty"))

    def _text(self, source: str, path: str, text: object) -> None:
        content = self._parse(str(text), path) if text else None
        if content is None:
            self._notes.append(Note(source, path, "no effect: it is empty"))
            return
        section = chart.an_object(content, path)
        nodes = section.get("nodeconfig")
        if isinstance(nodes, list) and [
            node.get("name") for node in nodes if isinstance(node, dict)
        ] == [_EXAMPLE_NODE]:
            section = {key: value for key, value in section.items() if key != "nodeconfig"}
            why = "no effect: it is the example of HAMi's chart"
            self._notes.append(Note(source, f"{path}: nodeconfig", why))
        self._take(source, section, path)

    def _scheduler(self, source: str, document: dict[str, Any], path: str) -> None:
        def skip(what: str) -> None:
            self._notes.append(Note(source, f"{path}: {what}", f"no effect: {_VOLCANO}"))

        for key in document:
            if key == "actions":
                self._notes.append(Note(source, f"{path}: {key}", _ACTIONS))
            elif key != "tiers":
                skip(key)
        for at, tier in enumerate(chart.a_list(document.get("tiers") or [], f"{path}: tiers")):
            here = f"{path}: tiers[{at}]"
            for key in sorted(chart.an_object(tier, here).keys() - {"plugins"}):
                skip(f"tiers[{at}].{key}")
            for plugin in chart.a_list(tier.get("plugins") or [], f"{here}.plugins"):
                name = chart.an_object(plugin, f"{here}.plugins").get("name")
                if name != "deviceshare":
                    skip(f"plugin {name}")
                    continue
                for key in sorted(plugin.keys() - {"name", "arguments"}):
                    skip(f"plugin {name}.{key}")
                arguments = plugin.get("arguments") or {}
                self._arguments(source, chart.an_object(arguments, f"{here}.arguments"), path)

    def _arguments(self, source: str, arguments: dict[str, Any], path: str) -> None:
        ranks_nodes = str(arguments.get(f"{_SHARE}ScheduleWeight", 0)) != "0"
        for key, value in arguments.items():
            here, name = f"{path}: {key}", key.removeprefix(_SHARE)
            if key == f"{_SHARE}SchedulePolicy":
                if value:
                    self._put(source, here, "policy.devices", value)
                if value and ranks_nodes:
                    self._put(source, here, "policy.nodes", value)
                if not value:
                    self._notes.append(Note(source, here, "no effect: it is empty"))
            elif key == f"{_SHARE}GPUExclusiveRules":
                fix = "annotate pods with hami.io/gpu-scheduler-policy: mutex"
                self._errors.append((source, ManifestError(here, None, "is not supported", fix)))
            elif key == f"{_SHARE}ScheduleWeight":
                why = "any number except 0 makes SchedulePolicy also rank nodes"
                self._notes.append(Note(source, here, why))
            elif name in _ARGUMENTS and name != key:
                self._notes.append(Note(source, here, f"no effect: {_ARGUMENTS[name]}"))
            else:
                self._unknown(source, here)

    def _take(self, source: str, document: dict[str, Any], path: str) -> None:
        lead = f"{path}: " if path else ""
        for name, section in document.items():
            if isinstance(section, dict) and section:
                for key, value in section.items():
                    target = below(name, key)
                    self._put(source, f"{lead}{target}", target, value)
            elif section or isinstance(section, list) or name not in self._document:
                self._put(source, f"{lead}{name}", name, section)
            else:
                self._notes.append(Note(source, f"{lead}{name}", "no effect: it is empty"))

    def _put(self, source: str, path: str, target: str, value: object) -> None:
        name, _, key = target.partition(".")
        held = self._document.get(name) if key else self._document
        if not isinstance(held, dict):
            held = self._document[name] = {}
            self._forget(source, path, name)
        at = key or name
        if held.get(at) != value:
            self._forget(source, path, target)
        held[at] = value
        self._origins[target] = (source, path)

    def _forget(self, source: str, path: str, target: str) -> None:
        for known in [each for each in self._origins if f"{each}.".startswith(f"{target}.")]:
            earlier = ": ".join(part for part in self._origins.pop(known) if part)
            self._notes.append(Note(source, path, f"replaces the value of {earlier}"))

    def _unknown(self, source: str, path: str) -> None:
        fix = "if it changes how devices are shared, find its key with `apportion config keys`"
        self._errors.append((source, ManifestError(path, None, "is not a known key", fix)))


def _leaves(part: dict[str, Any], lead: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        path = f"{lead}{key}"
        inside = any(known.startswith(f"{path}.") for known in _KNOWN)
        if path not in _KNOWN and inside and isinstance(value, dict):
            yield from _leaves(value, f"{path}.")
        elif path in _KNOWN or not inside or value:
            yield path, value
