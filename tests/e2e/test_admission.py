"""The admission webhook on a real API server: what a user of kubectl sees with and without it."""

import asyncio
import json
from typing import Any

from apportion.admission.reviews import WARNINGS_MAX
from apportion_schemas import Configuration, ConfigurationChanged, PodBound
from apportion_schemas.configuration import NvidiaConfiguration
from tests.support.certificates import HOST
from tests.support.kube_objects import kube_node, kube_pod, share
from tests.support.kube_world import KubeWorld
from tests.support.polling import until
from tests.support.webhook import running_webhook

HIDDEN = "NVIDIA_VISIBLE_DEVICES"
MEMORY = {"nvidia.com/gpumem": "3100"}


def pod(name: str, limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a pod without a scheduler name, so that the webhook may set one."""
    made = kube_pod(name, limits, **fields)
    del made["spec"]["schedulerName"]
    return made


async def create(world: KubeWorld, document: dict[str, Any], *options: str, ok: bool = True) -> str:
    return await world.plane.user("create", *options, "-f", "-", stdin=json.dumps(document), ok=ok)


async def dry(world: KubeWorld, document: dict[str, Any], *options: str) -> Any:
    """Return the pod as the API server would store it after admission (a server-side dry run)."""
    told = ("--dry-run=server", "-o", "json", *options)
    return json.loads(await create(world, document, *told))


async def test_D3_a_pod_that_names_no_scheduler_is_filled_in_and_bound(world: KubeWorld) -> None:
    """The webhook adds the scheduler and the GPU count to a pod that requests only GPU memory.

    The pod is then bound. Users cannot change the annotation that records its shares."""
    await world.plane.apply(kube_node("n1"))
    await world.agents(("n1", "1xT4"))
    for verb in ("watcher", "scheduler", "binder"):
        await world.start(verb)
    async with running_webhook(world) as webhook:
        await create(world, pod("p", MEMORY))
        found = await world.bound("p")
        assert found["spec"]["schedulerName"] == "apportion"
        resources = found["spec"]["containers"][0]["resources"]
        assert resources["limits"] == resources["requests"] == {**MEMORY, "nvidia.com/gpu": "1"}
        assert found["metadata"]["annotations"]["apportion.dev/shares"]
        await world.facts.count(PodBound, 1)
        # Only Apportion may change what it wrote; everything else may be changed.
        refused = await world.plane.user("annotate", "pod", "p", "apportion.dev/shares-", ok=False)
        assert 'metadata.annotations["apportion.dev/shares"]' in refused
        assert "set only by Apportion" in refused
        await world.plane.user("annotate", "pod", "p", "team=blue")
        await world.plane.user("delete", "pod", "p", "--grace-period=0", "--force")
        await webhook.in_force()


async def test_who_is_rejected_and_who_is_left_alone(world: KubeWorld) -> None:
    """The webhook rejects invalid requests and reserved annotations, and says how to fix them.

    It changes no pod that requests no device, names another scheduler, or has opted out."""
    plane = world.plane
    async with running_webhook(world):
        many = MEMORY | {"nvidia.com/gpumem-percentage": "500"}
        said = await create(world, pod("many", many), ok=False)
        assert "denied the request" in said
        assert "nvidia.com/gpumem-percentage" in said
        assert "write 1 to 100" in said
        forged = pod("forged", MEMORY, annotations={"apportion.dev/shares": "[]"})
        said = await create(world, forged, ok=False)
        assert 'metadata.annotations["apportion.dev/shares"]' in said
        assert "remove it" in said
        assert (await dry(world, pod("plain")))["spec"]["schedulerName"] == "default-scheduler"
        theirs = await dry(world, kube_pod("theirs", MEMORY, schedulerName="theirs"))
        assert theirs["spec"]["schedulerName"] == "theirs"
        for key in ("hami.io/webhook", "apportion.dev/webhook"):
            skipped = await dry(world, pod("skipped", MEMORY, labels={key: "ignore"}))
            assert skipped["spec"]["schedulerName"] == "default-scheduler"
            name = key.partition(".")[0]
            await plane.user("create", "namespace", f"left-{name}", ok=None)
            await plane.user("label", "--overwrite", "namespace", f"left-{name}", f"{key}=ignore")

            async def left_alone(space: str = f"left-{name}") -> bool:
                try:
                    left = await dry(world, pod("left", many), "-n", space)
                except AssertionError:  # the API server has not heard of the label yet
                    return False
                return bool(left["spec"]["schedulerName"] == "default-scheduler")

            await until(left_alone, f"namespaces with {key} to be left alone")


async def test_a_slip_of_the_pen_is_a_warning_that_kubectl_shows(world: KubeWorld) -> None:
    """The webhook admits a pod with a probable typo, and kubectl shows a warning with a
    suggestion."""
    slip = pod("slip", MEMORY, annotations={"nvidia.com/use-gputypes": "A100"})
    many = pod(
        "many", MEMORY, annotations={f"nvidia.com/slip-{n}-{'x' * 40}": "" for n in range(60)}
    )
    async with running_webhook(world):
        told = ("--dry-run=server", "--warnings-as-errors")
        said = await create(world, slip, *told, ok=False)
        assert 'Warning: metadata.annotations["nvidia.com/use-gputypes"]' in said
        assert "nvidia.com/use-gputype" in said
        assert "1 warning received" in said
        said = await create(world, many, *told, ok=False)
        shown = said.count("Warning: metadata.annotations[")
        assert 0 < shown <= WARNINGS_MAX, "so many that the API server cuts none of them off"
        assert f"{shown} warnings received" in said
        assert (await dry(world, slip))["spec"]["schedulerName"] == "apportion"
        await create(world, pod("well", MEMORY), *told)


async def test_a_dead_webhook_blocks_nothing_but_what_asks_for_that(world: KubeWorld) -> None:
    """While the webhook is down, the API server refuses pods that request a device or have our
    annotations.

    It refuses no other pod, and none in kube-system. In a namespace whose label requires the
    webhook, it refuses all pods."""
    plane = world.plane
    await plane.user("create", "namespace", "strict", ok=None)
    await plane.user(
        "label", "--overwrite", "namespace", "strict", "apportion.dev/webhook=required"
    )
    async with running_webhook(world):
        taken = await dry(world, pod("p", MEMORY), "-n", "strict")
        assert taken["spec"]["schedulerName"] == "apportion"
        await world.stop("admission")
        for limits, namespace in ((MEMORY, "kube-system"), ({}, "default")):
            made = await dry(world, pod("p", limits), "-n", namespace)
            assert made["spec"]["schedulerName"] == "default-scheduler"
        forged = pod("p", annotations={"apportion.dev/shares": "[]"})
        for waits, namespace in (
            (pod("p"), "strict"),
            (pod("p", MEMORY), "default"),
            (forged, "default"),
        ):
            said = await create(world, waits, "-n", namespace, ok=False)
            assert "failed calling webhook" in said


async def test_a_renewed_certificate_is_served_without_a_gap(world: KubeWorld) -> None:
    """The API server refuses no pod while the webhook's certificate files are replaced twice."""
    plane = world.plane
    await plane.user("create", "namespace", "strict", ok=None)
    await plane.user(
        "label", "--overwrite", "namespace", "strict", "apportion.dev/webhook=required"
    )
    async with running_webhook(world) as webhook:
        served: list[str] = []

        async def renewed() -> bool:
            taken = await dry(world, pod("p", share()), "-n", "strict")
            assert taken["spec"]["schedulerName"] == "apportion"
            now = await asyncio.to_thread(webhook.certificate)
            if now not in served:
                served.append(now)
                webhook.authority.issue("tls", HOST)
            return len(served) > 2

        await until(renewed, "two renewals", interval_s=0.3)


async def test_what_the_environment_gets_by_configuration(world: KubeWorld) -> None:
    """With the options `overwriteEnv` and `disableCoreLimit`, the webhook sets environment
    variables in a pod's containers."""
    nvidia = NvidiaConfiguration(overwrite_env=True, disable_core_limit=True)
    configuration = Configuration(nvidia=nvidia)
    await world.facts.write(ConfigurationChanged(by="test", configuration=configuration))
    document = pod("p", MEMORY)
    plain = {"name": "plain", "image": "app", "env": [{"name": HIDDEN, "value": "all"}]}
    other = {"name": "other", "image": "app", "env": [{"name": "A", "value": "b"}]}
    document["spec"]["containers"] += [plain, other]
    async with running_webhook(world):
        made = (await dry(world, document))["spec"]["containers"]
        assert [each["env"] for each in made] == [
            [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}],
            [{"name": HIDDEN, "value": "none"}],
            [{"name": "A", "value": "b"}, {"name": HIDDEN, "value": "none"}],
        ]
        (none,) = (await dry(world, pod("plain")))["spec"]["containers"]
        assert none["env"] == [{"name": HIDDEN, "value": "none"}]
