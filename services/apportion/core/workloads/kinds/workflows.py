"""Find the pods that the templates of an Argo Workflow describe.

A workflow may call templates of a WorkflowTemplate, or take its whole `spec` from one. Argo adds
its own containers to each pod. Their amounts are in its configuration, and are not read. Invariant:
an error names the document and the field that set the value."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from apportion.core.workloads.document import ManifestError, below, entries, part

Document = dict[str, Any]
# Of a kind, a name and the path of that name; raises ManifestError without such a document.
Find = Callable[[str, object, str], Document]
DEPTH_MAX: Final = 20  # of templates within steps
_POD_TYPES: Final = frozenset(("container", "containerSet", "script", "resource", "data"))
_TYPES: Final = _POD_TYPES | {"dag", "steps", "suspend", "http", "plugin"}
_REPLACED: Final = ("nodeSelector", "affinity", "tolerations", "resourceClaims", "schedulerName")
_OF_CALLER: Final = ("nodeSelector", "affinity", "tolerations")
# lists that Argo merges, each with the field that identifies an entry
_MERGED: Final = {
    "tolerations": "key", "volumes": "name", "initContainers": "name", "sidecars": "name",
}  # fmt: skip
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


class _Source(NamedTuple):
    """The `spec` of a document with templates, and its path."""

    spec: Document
    at: str


class _Workflow(NamedTuple):
    """A workflow: its own `spec`, the `spec` with its templates, and both merged.

    The templates are in its own `spec`, or in that of the WorkflowTemplate to which it refers."""

    own: _Source
    source: _Source  # has the templates
    spec: Document

    def path(self, key: str) -> str:
        """Return the path of the `spec` that has this field."""
        return self.own.at if key in self.own.spec else self.source.at


class _Found(NamedTuple):
    field: str
    template: Document
    source: _Source  # has the templates that this one calls by name
    depth: int = 0  # of inline templates
    caller: "_Found | None" = None  # the first template with a step or task that calls this one


def pods(spec: Document, at: str, find: Find) -> Iterator[TemplatePod]:
    """Yield the pod of each template of the workflow whose `spec` is at the path `at`.

    These are its own templates, and those of other documents that they call."""
    own = source = _Source(spec, at)
    if "workflowTemplateRef" in spec:
        if "templates" in spec:
            problem = "are not allowed next to workflowTemplateRef"
            raise ManifestError(f"{at}.templates", None, problem, "remove one of the two")
        field = f"{at}.workflowTemplateRef"
        source = _source_of(part(spec, "workflowTemplateRef"), field, find)
        spec = _merged(source.spec, spec)
    workflow, seen = _Workflow(own, source, spec), Counter[str]()
    defaults = part(spec, "templateDefaults")
    for each in _templates(workflow, find):
        other_types = _TYPES - each.template.keys()
        if other_types >= _POD_TYPES:
            continue  # steps, a suspension, or a call by Argo's own agent
        mine = {key: value for key, value in defaults.items() if key not in other_types}
        pod = _pod(workflow, each, _merged(mine, each.template))
        seen[pod.name] += 1
        again = f"-{seen[pod.name]}" if seen[pod.name] > 1 else ""
        yield pod._replace(name=pod.name + again)


def _source_of(ref: Document, field: str, find: Find) -> _Source:
    kind = "ClusterWorkflowTemplate" if ref.get("clusterScope") is True else "WorkflowTemplate"
    name = ref.get("name")
    _check_filled(f"{field}.name", name)
    return _Source(part(find(kind, name, f"{field}.name"), "spec"), f"{kind} {name}: spec")


def _templates(workflow: _Workflow, find: Find) -> Iterator[_Found]:
    """Yield the workflow's templates, each followed by the templates that only it calls."""
    waiting = [*_listed(workflow.source)]
    if not waiting:
        raise ManifestError(f"{workflow.own.at}.templates", None, "has no templates", "add one")
    known = {(workflow.source.at, str(each.template.get("name"))) for each in waiting}
    hooks = _Found(workflow.path("hooks"), {"hooks": workflow.spec.get("hooks")}, workflow.source)
    waiting = [hooks, *reversed(waiting)]
    while waiting:
        caller = waiting.pop()
        if caller is not hooks:
            yield caller
        more = list[_Found]()
        for at, call in _calls(caller.field, caller.template):
            called, name = caller.source, call.get("template")
            if inline := part(call, "inline"):
                inline = {"name": call.get("name")} | inline
                more.append(_Found(f"{at}.inline", inline, called, caller.depth + 1, caller))
                continue
            if ref := part(call, "templateRef"):
                name, called = ref.get("template"), _source_of(ref, f"{at}.templateRef", find)
            if (called.at, str(name)) in known:
                continue
            known.add((called.at, str(name)))
            found = [each for each in _listed(called) if each.template.get("name") == name]
            if ref and not found:
                field, kind = f"{at}.templateRef.template", called.at.partition(" ")[0]
                _check_filled(field, name)
                problem, fix = f"is not a template of this {kind}", "name one of its templates"
                raise ManifestError(field, name, problem, fix)
            more += (each._replace(caller=caller) for each in found[:1])
        if more and caller.depth >= DEPTH_MAX:
            fix = f"use at most {DEPTH_MAX} levels"
            raise ManifestError(caller.field, None, "nests inline templates too deeply", fix)
        waiting += reversed(more)


def _listed(source: _Source) -> Iterator[_Found]:
    found = [
        _Found(f"{source.at}.templates[{i}]", each, source)
        for i, each in entries(source.spec, "templates")
    ]
    callers: dict[str, _Found] = {}
    for caller in found:
        for _, call in _calls(caller.field, caller.template):
            callers.setdefault(str(call.get("template")), caller)
    for each in found:
        yield each._replace(caller=callers.get(str(each.template.get("name"))))


def _calls(field: str, template: Document) -> Iterator[tuple[str, Document]]:
    """Yield the tasks, steps and hooks of a template, with their paths."""
    found = [(f"{field}.dag.tasks[{i}]", t) for i, t in entries(part(template, "dag"), "tasks")]
    steps: Any = template.get("steps")
    for i, group in enumerate(steps if isinstance(steps, list) else ()):
        found += [(f"{field}.steps[{i}][{k}]", t) for k, t in entries({"all": group}, "all")]
    yield from found
    for at, whole in ((field, template), *found):
        for name, hook in part(whole, "hooks").items():
            yield below(f"{at}.hooks", str(name)), part(hook)


def _merged(under: Document, over: Document) -> Document:
    """Return both objects as one, as Argo merges them. If both have a value, `over` wins."""
    made = under | over
    for key, mine in over.items():
        other = under.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            made[key] = _merged(other, mine)
        elif key in _MERGED and isinstance(mine, list) and isinstance(other, list):
            names = [part(each).get(_MERGED[key]) for each in mine]
            rest = (each for each in other if part(each).get(_MERGED[key]) not in names)
            made[key] = [*mine, *rest]
    return made


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


def _pod(workflow: _Workflow, found: _Found, template: Document) -> TemplatePod:
    """Return the pod of a template, given with its defaults in `template`."""
    spec, field, caller = workflow.spec, found.field, found.caller
    made = dict(_containers(template, field))
    pod: Document = {"containers": [*made.values()]}
    if template.get("initContainers"):
        pod["initContainers"] = template["initContainers"]
    # The template's own value replaces that of its caller, and this one that of the workflow.
    called = part(caller.template if caller is not None else None)
    inherited = {key: called[key] for key in _OF_CALLER if called.get(key)}
    pod |= {key: template.get(key) or (spec | inherited).get(key) for key in _REPLACED}
    pod["volumes"] = [each for whole in (spec, template) for _, each in entries(whole, "volumes")]
    pod["hostNetwork"] = spec.get("hostNetwork")
    pod["resources"] = template.get("podResources") or spec.get("podResources")
    classes = (template.get("priorityClassName"), spec.get("podPriorityClassName"))
    pod["priorityClassName"] = next((each for each in classes if each), "")
    fields = [*made]

    def of_workflow(path: str) -> str:
        if one := _CONTAINER.match(path):
            number = int(one[0].partition("[")[2][:-1])
            whole = one[0].startswith("spec.containers")
            where = fields[number] if whole else f"{field}.initContainers[{number}]"
            return where + path[one.end() :]
        path = path.removeprefix("spec.")
        key = re.split(r"[.\[]", path)[0]
        if template.get(key):
            return f"{field}.{path}"
        at = caller.field if caller is not None and key in inherited else workflow.path(key)
        return f"{at}.{path}"

    if patch := template.get("podSpecPatch") or spec.get("podSpecPatch"):
        problem = "is merged into the pod by Argo at run time"
        fix = "remove it, and set the patched fields in the workflow"
        raise ManifestError(of_workflow("podSpecPatch"), patch, problem, fix)
    other = {} if found.source is workflow.source else found.source.spec
    about = {
        key: part(spec, "podMetadata", key)
        | part(other, "podMetadata", key)
        | part(template, "metadata", key)
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
        _check_filled(of_workflow(path), value)
    name = _NOT_A_NAME.sub("-", str(template.get("name", "")).lower()).strip("-") or "pod"
    pod = {key: each for key, each in pod.items() if each}
    return TemplatePod(name, about, pod, of_workflow)


def _check_filled(field: str, value: object) -> None:
    if isinstance(value, str) and _FILLED in value:
        problem, fix = "is filled in by Argo at run time", "write a value to check it"
        raise ManifestError(field, value, problem, fix)


def _texts(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, below(at, str(key)))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _texts(each, f"{at}[{i}]")
