"""The chart's job that moves pods on a schedule: its limits, its rights, its command."""

from typing import Any

import pytest

from apportion.cli.verbs.act.defrag import LIFT_S, command
from tests.support.helm import CHART, documents, helm, rendered

NAME = ("CronJob", "defrag")


def made(*settings: str) -> dict[tuple[str, str], Any]:
    """Return the chart's objects with the job and these settings."""
    return documents(rendered("--set", ",".join(("defrag.enabled=true", *settings))))


def container_of(found: dict[tuple[str, str], Any]) -> Any:
    """Return the container of the job."""
    (only,) = found[NAME]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return only


def test_without_its_setting_the_chart_has_no_job() -> None:
    """By default, no pod is moved on a schedule, and no account may evict pods."""
    found = documents(rendered())
    assert not {NAME, ("ServiceAccount", "defrag"), ("ClusterRole", "apportion-defrag")} & {*found}
    assert "pods/eviction" not in str(found)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ((), {"budget": 10, "max_lost": 4.0, "timeout_s": 600.0, "free_nodes": None}),
        (
            ("defrag.budget=2", "defrag.maxLost=0", "defrag.timeout=60", "defrag.freeNodes=3"),
            {"budget": 2, "max_lost": 0.0, "timeout_s": 60.0, "free_nodes": 3},
        ),
    ],
    ids=["default", "set"],
)
def test_the_command_gets_the_limits_of_the_settings(
    settings: tuple[str, ...], values: dict[str, float | None]
) -> None:
    """The verb accepts the job's arguments, which contain each limit of the chart's settings."""
    verb, *words = container_of(made(*settings))["args"]
    given = command.make_context(verb, words).params
    assert {name: given[name] for name in values} == values
    assert (given["apply"], given["ignore_blocked"], given["names"]) == (True, True, ())


def test_the_lost_work_may_be_a_fraction() -> None:
    """The limit for lost work is a number of GPU-hours, such as half an hour."""
    text = rendered("--set", "defrag.enabled=true", "--set-json", "defrag.maxLost=0.5")
    verb, *words = container_of(documents(text))["args"]
    assert command.make_context(verb, words).params["max_lost"] == 0.5


def test_one_run_at_a_time_within_its_deadline() -> None:
    """The CronJob starts no run while one is running. A run is neither retried nor started late.

    It is ended some minutes after the time limit of its moves, and then gets time to remove its
    cordons. Only cordons that are older than that are removed by a later run."""
    spec = made("defrag.timeout=120", "defrag.schedule=@daily")[NAME]["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("@daily", "Forbid")
    assert spec["startingDeadlineSeconds"] <= 3600
    assert "timeZone" not in spec
    job = spec["jobTemplate"]["spec"]
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 420)
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= LIFT_S + 60
    verb, *words = pod["containers"][0]["args"]
    killed_s = job["activeDeadlineSeconds"] + pod["terminationGracePeriodSeconds"]
    assert command.make_context(verb, words).params["stale_s"] == killed_s + 60
    zone = "defrag.timeZone=Europe/Berlin"
    assert made(zone)[NAME]["spec"]["timeZone"] == "Europe/Berlin"
    found = documents(rendered("--set", f"defrag.enabled=true,{zone}", "--kube-version", "1.25.0"))
    assert found[NAME]["spec"]["timeZone"] == "Europe/Berlin"
    words = ("--set", f"defrag.enabled=true,{zone}", "--kube-version", "1.24.0")
    assert "defrag.timeZone" in helm("template", "apportion", str(CHART), *words, ok=False)


@pytest.mark.parametrize("login", ["kubernetes", "open"])
def test_the_job_may_evict_pods_and_read_the_gateway(login: str) -> None:
    """The job's account has one right at the API server, and with a login one at the gateway."""
    found = made(f"gateway.login={login}")
    bound = [
        each["roleRef"]["name"]
        for (kind, _), each in found.items()
        if kind.endswith("RoleBinding") and "defrag" in {s["name"] for s in each["subjects"]}
    ]
    assert bound == ["apportion-defrag"]
    evict = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    read = {"apiGroups": ["apportion.dev"], "resources": ["ledger"], "verbs": ["get"]}
    rules = found["ClusterRole", "apportion-defrag"]["rules"]
    assert rules == ([evict, read] if login == "kubernetes" else [evict])
    names = {each["name"] for each in container_of(found)["env"]}
    assert ("APPORTION_TOKEN" in names) == (login == "kubernetes")


@pytest.mark.parametrize("callout", ["true", "false"])
def test_the_job_has_a_login_of_its_own_for_each_server(callout: str) -> None:
    """The job logs in to the ledger as `defrag`, and its token for the gateway is good for nothing
    else."""
    found = made(f"callout.enabled={callout}", "gateway.certificates=gateway-tls")
    env = {each["name"]: each.get("value", "") for each in container_of(found)["env"]}
    user = "$(POD_NAME)" if callout == "true" else "defrag:$(PASSWORD)"
    assert env["APPORTION_NATS_URL"] == f"tls://{user}@nats:4222"
    assert env["APPORTION_GATEWAY"] == "https://gateway:8470"
    pod = found[NAME]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "defrag"
    audiences = {
        source["serviceAccountToken"]["audience"]
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    }
    assert audiences == {"apportion"} | ({"apportion-nats"} if callout == "true" else set())
    keys = {
        item["key"]
        for volume in pod["volumes"]
        if volume.get("secret", {}).get("secretName") == "gateway-tls"
        for item in volume["secret"]["items"]
    }
    assert keys == {"ca.crt"}, "not the gateway's private key"
    password = "APPORTION_DEFRAG_PASSWORD"
    assert password in found["Secret", "nats-passwords"]["data"]
