"""Tests that the admission policies' regular expressions match every annotation and resource name
that they must protect."""

import re
from pathlib import Path

import pytest
import yaml

from apportion.core.admission import OF_USERS
from apportion.core.workloads.dialects import DialectConfig, hami, vcuda, volcano_share
from apportion.core.workloads.dialects.listing import RECOVERS, claimed
from apportion.core.workloads.dialects.vendors import ascend, cambricon

POLICIES = Path(__file__).resolve().parents[4] / "deploy" / "kubernetes" / "policies"
WISHED = "volcano.sh/gpu-index"
"""A pod may request a device by its index at creation."""
PLAIN = (
    "hami.io/vgpu-mode", "hami.io/node-scheduler-policy", "hami.io/webhook", "volcano.sh/vgpu-mode",
    "hami.io/use-Ascend310P-uuid", "huawei.com/vnpu-mode", "volcano.sh/task-spec", "team",
    "nvidia.com/use-gputype", "scheduling.k8s.io/group-name",
)  # fmt: skip
"""Annotations that users write themselves."""


def patterns(name: str) -> set[str]:
    """Return every regular expression that the admission policy called `name` contains."""
    (policy, _) = yaml.safe_load_all((POLICIES / f"{name}.yaml").read_text("utf-8"))
    return set(re.findall(r"k\.matches\('([^']+)'\)", str(policy["spec"]).replace("\\'", "'")))


def test_whatever_is_read_back_as_held_is_guarded() -> None:
    """The admission policy protects every annotation that tells Apportion which devices a bound pod
    has.

    `volcano.sh/gpu-index` is not protected, because a user may set it to request a device."""
    (pattern,) = patterns("annotations")
    missed = {key for key in RECOVERS if not re.fullmatch(pattern, key)}
    assert missed == {WISHED}
    assert not [key for key in PLAIN if re.fullmatch(pattern, key)]


def test_the_annotations_of_users_are_the_webhooks() -> None:
    """The admission policy and the webhook let users set the same annotations."""
    text = (POLICIES / "annotations.yaml").read_text("utf-8")
    (users,) = re.findall(r"!\(k in \[([^]]+)\]\)", text)
    assert set(re.findall(r"'([^']+)'", users)) == set(OF_USERS)


@pytest.mark.parametrize("module", [ascend, cambricon, hami, vcuda, volcano_share])
def test_whatever_is_written_for_a_device_plugin_is_guarded(module: object) -> None:
    """The admission policy protects every pod annotation that Apportion writes for HAMi's or
    Volcano's device plugin."""
    (pattern,) = patterns("annotations")
    text = Path(str(module.__file__)).read_text("utf-8")  # type: ignore[attr-defined]
    written = re.findall(
        r'"((?:hami.io|volcano.sh)/(?:bind|vgpu-(?:node|time)|predicate)[^"]*)"', text
    )
    assert not [key for key in written if not re.fullmatch(pattern, key)]


def test_whatever_asks_for_devices_is_looked_at() -> None:
    """The admission policy matches every resource name with which a pod can request devices, and no
    other."""
    (pattern,) = patterns("shares")
    assert not [name for name in claimed(DialectConfig()) if not re.fullmatch(pattern, name)]
    assert not re.fullmatch(pattern, "cpu")
    assert not re.fullmatch(pattern, "hugepages-2Mi")
