"""Check how Apportion would read manifests, without a cluster.

For a document whose controller creates pods, its pod template is read as a pod, or its job template
as a job. Invariant: a document with pods is accepted, refused, or reported as an unknown kind. For
an accepted document, settings without effect are reported."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from apportion.core.workloads.dialects import ManifestError
from apportion.core.workloads.document import items_of, part
from apportion.core.workloads.kinds.drafts import PodDraft
from apportion.core.workloads.kinds.limits import limit_of
from apportion.core.workloads.lint import ignored_fields
from apportion.core.workloads.lint.typo_checks import (
    Suspect,
    left_elsewhere,
    of_no_device,
    suspects,
)
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.core.workloads.pods.unsupported import places
from apportion.core.workloads.reading import (
    JOB_TEMPLATES,
    TAKEN,
    TEMPLATES,
    called,
    class_of,
    errors_below,
    holds_pods,
    is_other,
    read_document,
    title,
)

VOLCANO_JOB = ("batch.volcano.sh/v1alpha1", "Job")
# the path of the pod in kinds that can be submitted
TEMPLATES_READ = {
    ("v1", "Pod"): "",
    ("batch/v1", "Job"): "spec.template",
    ("apps/v1", "Deployment"): "spec.template",
    VOLCANO_JOB: "spec.tasks[].template",
}


class Checked(NamedTuple):
    """The result of checking one document, or one item of a List.

    It has neither pods nor an error if the document is a queue or quota, or was skipped."""

    name: str
    pods: tuple[PodDraft, ...] = ()
    notes: tuple[Suspect, ...] = ()
    error: ManifestError | None = None
    passed_over: bool = False  # skipped
    known: bool = True  # whether the kind of its pods is known


def checked(document: object, config: ManifestConfig) -> Iterator[Checked]:
    """Yield the result for a document, or for each item of a List. PriorityClasses are left out."""
    items, error = items_of(document)
    for prefix, item in items:
        if class_of(item) is None:
            yield _checked(item, prefix, config)
    if error is not None:
        yield Checked(title(document), error=error)


def _checked(document: Any, prefix: str, config: ManifestConfig) -> Checked:
    if is_other(document):
        return Checked(called(document), passed_over=True)
    name = title(document)
    about = part(document)
    kind = (str(about.get("apiVersion")), str(about.get("kind")))
    if kind not in {*TAKEN, *TEMPLATES, *JOB_TEMPLATES} and holds_pods(about):
        return Checked(name, known=False)
    try:
        with errors_below(prefix):
            if limit_of(document, config.dialects) is not None:
                slips = suspects(document, config.dialects, placed=True)
                return Checked(name, notes=_below(prefix, slips))
            made, below, at = document, "", TEMPLATES_READ.get(kind, "")
            if kind in TEMPLATES:
                at = TEMPLATES[kind]
                made, below = _as(("v1", "Pod"), document, at), f"{at}."
            elif (job := JOB_TEMPLATES.get(kind)) is not None:
                below = f"{job}." if job else ""
                made, at = _as(VOLCANO_JOB, document, job), below + TEMPLATES_READ[VOLCANO_JOB]
        with errors_below(prefix + below):
            manifest = read_document(made, config)
    except ManifestError as error:
        return Checked(name, error=error)
    spec = f"{at}.spec" if at else "spec"
    expected = {f"{spec}.{path}": why for path, why in ignored_fields.EXPECTED.items()}
    if "tasks[]" in at:
        fields = ignored_fields.JOB_FIELDS
        expected |= {f"{below}spec.{path}": why for path, why in fields.items()}
    notes = (
        *(
            Suspect(field, why, doubtful=False)
            for path, why in expected.items()
            for field, _ in places(about, "", path.split("."))
        ),
        *of_no_device(document, config.dialects),
        *left_elsewhere(about, config.schedulers),
        *suspects(document, config.dialects, placed=True),
    )
    return Checked(name, manifest.pods, _below(prefix, notes))


def _below(prefix: str, notes: Iterable[Suspect]) -> tuple[Suspect, ...]:
    return tuple(note._replace(field=prefix + note.field) for note in notes)


def _as(kind: tuple[str, str], document: dict[str, Any], at: str) -> dict[str, Any]:
    template: Any = document
    for key in filter(None, at.split(".")):
        template = template.get(key) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise ManifestError(at, template, "is missing or not an object", "add a pod template")
    owner = part(document, "metadata")
    named = {key: owner[key] for key in ("name", "namespace") if key in owner}
    made = {"apiVersion": kind[0], "kind": kind[1]}
    return template | made | {"metadata": part(template, "metadata") | named}
