"""A table lists all rights of our accounts at the API server (points 2 to 7 of the checklist).

The test fails for a right without a row, and for a row without a right."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.control_plane import ROOT

RBAC = ROOT / "deploy" / "kubernetes" / "rbac"
READ = "get list watch"
TABLE = """
watcher   /pods /nodes /namespaces /resourcequotas /persistentvolumeclaims /persistentvolumes: READ
watcher   storage.k8s.io/storageclasses storage.k8s.io/csinodes storage.k8s.io/csidrivers: READ
watcher   storage.k8s.io/csistoragecapacities policy/poddisruptionbudgets: READ
watcher   scheduling.volcano.sh/podgroups scheduling.volcano.sh/queues: READ
watcher   scheduling.x-k8s.io/podgroups scheduling.k8s.io/podgroups: READ
watcher   scheduling.run.ai/podgroups scheduling.run.ai/queues: READ
watcher   topology.volcano.sh/hypernodes kai.scheduler/topologies: READ
watcher   /events: create
binder    /pods/binding: create
binder    /pods: get delete
binder    /pods/status: patch
binder    /persistentvolumeclaims: get patch
binder    /persistentvolumes: get list patch
binder    storage.k8s.io/storageclasses: get
binder    /events: create get patch
binder    scheduling.volcano.sh/podgroups: get patch
binder    scheduling.volcano.sh/podgroups/status: patch
binder    scheduling.volcano.sh/queues: get create
binder    /nodes/status: patch
binder    /nodes: get
gateway   authentication.k8s.io/tokenreviews: create
gateway   authorization.k8s.io/subjectaccessreviews: create
"""
Right = tuple[str, str, str]


def wanted() -> set[Right]:
    """Return the rights that the table lists, as (account, resource, verb)."""
    rows = set()
    for line in filter(None, TABLE.splitlines()):
        left, _, verbs = line.replace("READ", READ).partition(": ")
        account, *resources = left.split()
        rows |= {(account, each, verb) for each in resources for verb in verbs.split()}
    return rows


def granted(objects: list[dict[str, Any]]) -> Iterator[Right]:
    """Yield each right that a role gives to an account, as (account, resource, verb)."""
    roles = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    for binding in objects:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        for subject in binding["subjects"]:
            for rule in role["rules"]:
                only = "".join(f"={name}" for name in rule.get("resourceNames", ()))
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            yield subject["name"], f"{group}/{resource}{only}", verb


def objects() -> list[dict[str, Any]]:
    """Return every object in the RBAC manifests."""
    paths = sorted(RBAC.glob("[!k]*.yaml"))
    return [each for path in paths for each in yaml.safe_load_all(path.read_text()) if each]


def test_every_right_stands_in_the_table() -> None:
    """The manifests grant exactly the rights that the table lists."""
    assert set(granted(objects())) == wanted()


def test_a_right_that_nobody_listed_is_found() -> None:
    """The check finds a right that the table does not list."""
    weak = objects()
    (role,) = [each for each in weak if each["metadata"]["name"] == "apportion-watcher"
               and each["kind"] == "ClusterRole"]  # fmt: skip
    role["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
    assert set(granted(weak)) - wanted() == {("watcher", "/secrets", "get")}
