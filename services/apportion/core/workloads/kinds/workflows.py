"""Find the pods that the templates of an Argo Workflow describe.

Argo adds its own containers to each pod. Their amounts are in its configuration, and are not read.
Invariant: an error names the field of the workflow that set the value."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from apportion.core.workloads.document import ManifestError, below, entries, part

Document = dict[str, Any]
DEPTH_MAX: Final = 20  # of templates within steps
_MERGED: Final = ("nodeSelector", "affinity")
_LISTED: Final = ("tolerations", "volumes", "resourceClaims")
_PLAIN: Final = ("schedulerName", "hostNetwork")
_FILLED: Final = "{{"  # begins a value that Argo fills in
_MAIN: Final = {"name": "main"}  # how Argo names a template's own container
_CONTAINER: Final = re.compile(r"spec\.(?:containers|initContainers)\[\d+\]")
_NOT_A_NAME: Final = re.compile("[^a-z0-9]+")


class TemplatePod(NamedTuple):
    """The pod of one template. `field` maps a path in the pod to a path in the workflow."""

    name: str
    metadata: Document
    spec: Document
    field: Callable[[str], str]


def pods(spec: Document, at: str) -> Iterator[TemplatePod]:
    """Yield the pod of each template below the workflow's `spec`, which is at the path `at`."""
    seen = Counter[str]()
    for i, each in entries(spec, "templates"):
        for field, template in _with_inline(f"{at}.templates[{i}]", each, 0):
            whole = part(spec, "templateDefaults") | template
            made = dict(_containers(whole, field))
            if not made:
                continue  # steps, a suspension, or a call by Argo's own agent
            name = _NOT_A_NAME.sub("-", str(whole.get("name", "")).lower()).strip("-") or "pod"
            seen[name] += 1
            again = f"-{seen[name]}" if seen[name] > 1 else ""
            yield _pod(spec, at, whole, field, made)._replace(name=name + again)


def _with_inline(field: str, template: Document, depth: int) -> Iterator[tuple[str, Document]]:
    if depth > DEPTH_MAX:
        fix = f"use at most {DEPTH_MAX} levels"
        raise ManifestError(field, None, "has too many inline templates in each other", fix)
    yield field, template
    tasks = [(f"{field}.dag.tasks[{i}]", t) for i, t in entries(part(template, "dag"), "tasks")]
    steps: Any = template.get("steps")
    for i, group in enumerate(steps if isinstance(steps, list) else ()):
        tasks += [(f"{field}.steps[{i}][{k}]", t) for k, t in entries({"all": group}, "all")]
    for at, task in tasks:
        if inline := part(task, "inline"):
            yield from _with_inline(f"{at}.inline", {"name": task.get("name")} | inline, depth + 1)


def _containers(template: Document, field: str) -> Iterator[tuple[str, Document]]:
    for key in ("container", "script"):
        if isinstance(template.get(key), dict):
            yield f"{field}.{key}", _MAIN | template[key]
    for i, each in entries(part(template, "containerSet"), "containers"):
        yield f"{field}.containerSet.containers[{i}]", each
    if "resource" in template or "data" in template:
        yield field, dict(_MAIN)  # Argo's executor, which creates an object or reads a list
    for i, each in entries(template, "sidecars"):
        yield f"{field}.sidecars[{i}]", each


def _pod(
    spec: Document, at: str, template: Document, field: str, made: dict[str, Document]
) -> TemplatePod:
    pod: Document = {"containers": [*made.values()]}
    if template.get("initContainers"):
        pod["initContainers"] = template["initContainers"]
    for key in _MERGED:
        pod[key] = part(spec, key) | part(template, key)
    for key in _LISTED:
        pod[key] = [each for whole in (spec, template) for _, each in entries(whole, key)]
    pod |= {key: whole[key] for whole in (spec, template) for key in _PLAIN if key in whole}
    pod["resources"] = part(spec, "podResources") | part(template, "podResources")
    classes = (template.get("priorityClassName"), spec.get("podPriorityClassName"))
    pod["priorityClassName"] = next((each for each in classes if each), "")
    fields = [*made]

    def of_workflow(path: str) -> str:
        if found := _CONTAINER.match(path):
            number = int(found[0].partition("[")[2][:-1])
            whole = found[0].startswith("spec.containers")
            where = fields[number] if whole else f"{field}.initContainers[{number}]"
            return where + path[found.end() :]
        path = path.removeprefix("spec.")
        key = re.split(r"[.\[]", path)[0]
        return f"{field if key in template else at}.{path}"

    about = {
        key: part(spec, "podMetadata", key) | part(template, "metadata", key)
        for key in ("labels", "annotations")
    }
    read = pod | {
        key: [
            {name: each.get(name) for name in ("name", "resources")}
            for _, each in entries(pod, key)
        ]
        for key in ("containers", "initContainers")
    }
    for path, value in (*_texts(read, "spec"), *_texts(about, "metadata")):
        if _FILLED in value:
            problem, fix = "is filled in by Argo at run time", "write a value to check it"
            raise ManifestError(of_workflow(path), value, problem, fix)
    return TemplatePod("", about, {key: each for key, each in pod.items() if each}, of_workflow)


def _texts(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, below(at, str(key)))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _texts(each, f"{at}[{i}]")
