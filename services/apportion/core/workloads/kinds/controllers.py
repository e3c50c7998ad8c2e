"""Kinds that are not submitted here, because controllers make pods or jobs of them.

Without their controllers nobody does, so they are looked at and not taken.
"""

from typing import Final

TEMPLATES: Final = {
    ("apps/v1", "StatefulSet"): "spec.template",
    ("apps/v1", "DaemonSet"): "spec.template",
    ("apps/v1", "ReplicaSet"): "spec.template",
    ("v1", "ReplicationController"): "spec.template",
    ("batch/v1", "CronJob"): "spec.jobTemplate.spec.template",
}
"""Where they have the pod that their controllers make."""
JOB_TEMPLATES: Final = {
    ("batch.volcano.sh/v1alpha1", "CronJob"): "spec.jobTemplate",
    ("flow.volcano.sh/v1alpha1", "JobTemplate"): "",
}
"""Where Volcano's other kinds have the Job that their controllers make; JobFlows name templates."""
