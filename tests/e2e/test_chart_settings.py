"""Settings of the chart decide about labels, where and how pods run, and scheduler names."""

import json
from typing import Any

import yaml

from tests.support.helm import CHART, documents, pod_templates, rendered

SPACE = "apportion"


def test_every_setting_has_its_rule() -> None:
    """values.yaml and its schema list the same settings, so the chart refuses a misspelt
    setting."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(said: Any, rule: Any, where: str) -> None:
        if not isinstance(said, dict) or "properties" not in rule:
            return
        assert said.keys() == rule["properties"].keys() - {"global"}, where
        assert rule["additionalProperties"] is False, where
        for key, value in said.items():
            check(value, rule["properties"][key], f"{where}.{key}")

    check(values, schema, "values")


def test_all_objects_have_the_recommended_labels() -> None:
    """Each object has the labels that Kubernetes recommends, and those of the settings.

    A selector also names the release, so another app in the namespace cannot match it."""
    more = "commonLabels.team=ml,podLabels.billing=shared,podAnnotations.note=x"
    more += ",receipts.enabled=true,defrag.enabled=true,extender.enabled=true,dra.enabled=true"
    more += ",monitoring.scrape.enabled=true,monitoring.rules.enabled=true"
    more += ",monitoring.dashboards.enabled=true,createNamespace=true"
    found = documents(rendered("--set", more))
    for (kind, name), each in found.items():
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "apportion", (kind, name)
        assert labels["app.kubernetes.io/instance"] == SPACE, (kind, name)
        assert labels["team"] == "ml", (kind, name)
        selector = each.get("spec", {}).get("selector", {})
        words = selector.get("matchLabels", selector)
        if "app" in words and kind != "PodMonitor":
            assert words["app.kubernetes.io/instance"] == SPACE, (kind, name)
    for name, template in pod_templates(found).items():
        about = template["metadata"]
        assert about["labels"]["billing"] == "shared", name
        assert about["annotations"]["note"] == "x", name
        assert "app.kubernetes.io/version" not in about["labels"], name


def test_where_and_how_pods_run_is_set() -> None:
    """Image digest, PriorityClass, affinity, spread, probes and update pace are settings.

    NATS has its own node selection, because it may need nodes with disks."""
    digest = "sha256:" + "0" * 64
    term = {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}
    needed = {"nodeSelectorTerms": [term]}
    near = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": needed}}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    found = documents(rendered(
        "--set", f"image.digest={digest},priorityClassName=,agent.priorityClassName=gpu-agents",
        "--set", "agent.maxUnavailable=1,probes.startupSeconds=600,nats.nodeSelector.disk=ssd",
        "--set-json", f"scheduler.affinity={json.dumps(near)}",
        "--set-json", f"nats.topologySpreadConstraints={json.dumps(spread)}",
        "--set-json", 'nats.tolerations=[{"key": "storage", "operator": "Exists"}]',
    ))  # fmt: skip
    pods = {name: each["spec"] for name, each in pod_templates(found).items()}
    (scheduler,) = pods["scheduler"]["containers"]
    assert scheduler["image"].endswith(f"@{digest}")
    assert scheduler["startupProbe"]["failureThreshold"] == 300
    assert pods["scheduler"]["affinity"] == near
    assert "podAntiAffinity" in pods["watcher"]["affinity"]
    assert "priorityClassName" not in pods["scheduler"] | pods["nats"]
    assert pods["agent"]["priorityClassName"] == "gpu-agents"
    assert found["DaemonSet", "agent"]["spec"]["updateStrategy"]["rollingUpdate"] == {
        "maxUnavailable": 1
    }
    nats = pods["nats"]
    assert (nats["nodeSelector"], nats["tolerations"]) == (
        {"disk": "ssd"}, [{"key": "storage", "operator": "Exists"}],
    )  # fmt: skip
    assert nats["topologySpreadConstraints"] == spread


def test_one_setting_names_the_schedulers() -> None:
    """`schedulerNames` reaches the watcher and the webhook, which sets the first name in pods."""

    def given(*words: str) -> dict[str, list[str]]:
        pods = pod_templates(documents(rendered(*words)))
        of = {name: pods[name]["spec"]["containers"][0]["args"] for name in pods if name in chosen}
        return {
            name: [word for word in args if word.startswith(("--scheduler-name", "--fill-in"))]
            for name, args in of.items()
        }

    chosen = {"watcher", "admission"}
    assert given() == {"watcher": [], "admission": []}
    assert given("--set", "schedulerNames={gpu,hami-scheduler}") == {
        "watcher": ["--scheduler-name=gpu", "--scheduler-name=hami-scheduler"],
        "admission": ["--scheduler-name=gpu", "--fill-in=gpu", "--scheduler-name=hami-scheduler"],
    }
    assert given("--set", "shadow=true") == {"watcher": ["--scheduler-name=apportion"]}
