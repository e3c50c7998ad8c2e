"""Simulate Volcano's controllers: for each Job, create its PodGroup and its pods.

Tests need this because Apportion replaces only Volcano's scheduler."""

from __future__ import annotations

from typing import Any

from tests.support.kube_world import KubeWorld
from tests.support.polling import until


def pod_group(job: dict[str, Any]) -> dict[str, Any]:
    """Return the PodGroup that Volcano would create for this Job.

    `job` is the Job as the API server returns it."""
    spec = job["spec"]
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": group_name(job),
            "namespace": job["metadata"]["namespace"],
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "minMember": spec["minAvailable"],
            "minTaskMember": {
                task["name"]: task["minAvailable"]
                for task in spec["tasks"]
                if "minAvailable" in task
            },
            "queue": spec.get("queue", "default"),
        },
    }


def job_pods(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods that Volcano would create for this Job.

    `job` is the Job as the API server returns it."""
    return [
        _pod(job, task, number)
        for task in job["spec"]["tasks"]
        for number in range(task["replicas"])
    ]


async def make_pods(world: KubeWorld, namespace: str) -> None:
    """Create the PodGroup of every Job in the namespace.

    Once a PodGroup is admitted, create the pods of its Job."""
    for job in (await world.plane.get("jobs.batch.volcano.sh", namespace=namespace))["items"]:
        await world.plane.apply(pod_group(job), namespace=namespace)

        async def let_in(name: str = group_name(job)) -> bool:
            group = await world.plane.get(
                "podgroups.scheduling.volcano.sh", name, namespace=namespace
            )
            return bool(group.get("status", {}).get("phase", "Pending") != "Pending")

        await until(let_in, f"the gang of {namespace} to be let in", interval_s=0.2)
        await world.plane.apply(*job_pods(job), namespace=namespace)


async def end_job(world: KubeWorld, namespace: str, name: str) -> None:
    """Delete the pods and the PodGroup of a Job, as Volcano does for the command `AbortJob`."""
    job = await world.plane.get("jobs.batch.volcano.sh", name, namespace=namespace)
    for pod in job_pods(job):
        await world.delete(pod["metadata"]["name"], namespace=namespace)
    await world.plane.user(
        "delete", "podgroups.scheduling.volcano.sh", group_name(job), "-n", namespace
    )


def group_name(job: dict[str, Any]) -> str:
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def _pod(job: dict[str, Any], task: dict[str, Any], number: int) -> dict[str, Any]:
    template = task["template"]
    notes = {
        "scheduling.k8s.io/group-name": group_name(job),
        "volcano.sh/task-index": str(number),
        "volcano.sh/task-spec": task["name"],
        "volcano.sh/job-name": job["metadata"]["name"],
        "volcano.sh/queue-name": job["spec"].get("queue", "default"),
        "volcano.sh/job-version": "0",
        "volcano.sh/template-uid": f"{job['metadata']['name']}-{task['name']}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job['metadata']['name']}-{task['name']}-{number}",
            "namespace": job["metadata"]["namespace"],
            "annotations": template.get("metadata", {}).get("annotations", {}) | notes,
            "labels": {"volcano.sh/job-name": job["metadata"]["name"]},
            "ownerReferences": [_owner(job)],
        },
        "spec": {"schedulerName": job["spec"]["schedulerName"]} | template["spec"],
    }


def _owner(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": job["apiVersion"],
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
