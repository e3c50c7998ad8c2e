"""Read Volcano's HyperNodes and KAI's Topologies, and find the levels that a PodGroup names.

A level is always a node label. Each tier of HyperNodes becomes a label: its value on a node is the
highest HyperNode, up to this tier, that contains the node. So the nodes with the same value are
those of one HyperNode. Invariant: the time to match a node has one limit for all patterns."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import structs

from apportion.core.workloads import kube
from apportion.core.workloads.document import (
    ManifestError,
    dns_label,
    dns_subdomain,
    qualified_name,
    typed,
)
from apportion.core.workloads.pods.affinity import expressions, holds
from apportion.core.workloads.pods.template import TASK
from apportion_schemas import GangPart, LabelExpression, PodGroupObserved
from apportion_schemas.quantities import LEVELS_MAX

HYPER_NODES: Final = "topology.volcano.sh"
KAI: Final = "kai.scheduler"
TIER: Final = "apportion.dev/hypernode-tier-"  # the node label of a tier, without its number
TIER_NAME: Final = "apportion.dev/hypernode-tier-name."  # a tier by name, until it is known
ANY_TIER: Final = f"{TIER}0"
# the label of a Volcano pod with the number of its partition
PARTITION: Final = "volcano.sh/partition-id"
L = TypeVar("L", PodGroupObserved, GangPart)
SELECTORS_MAX: Final = 1_024  # of all HyperNodes; each is tried for each node
NESTED_MAX: Final = 1_024  # subgroups in the parts of one PodGroup
DEPTH_MAX: Final = 8  # subgroups around each other
# Repetitions in one pattern, and alternatives by the number of repetitions. A pattern without a
# leading ^ has one more repetition, because each start is tried.
REPEATS_MAX: Final = 3
CHOICES_MAX: Final = (8, 8, 5, 2)
_LITERAL: Final = re.compile(r"\\[^1-9]|\[\^?\]?(?:\\.|[^\]\\])*\]")
_PATTERN_FIX: Final = "use exactMatch or labelMatch, or a simpler pattern"


class HyperNode(NamedTuple):
    """A HyperNode, and its members by kind of selector."""

    name: str
    tier: int
    tier_name: str
    nodes: tuple[str, ...]
    hyper_nodes: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    selectors: tuple[tuple[LabelExpression, ...], ...]


class Topology(NamedTuple):
    """A Topology of KAI: the label keys of its levels, coarsest first, and other names of them."""

    name: str
    levels: tuple[str, ...]
    aliases: Mapping[str, str]


def read_hyper_node(document: dict[str, Any]) -> HyperNode:
    """Read a HyperNode. Raises ManifestError if a member cannot be read."""
    found = typed(document, kube.HyperNode)
    nodes, hyper_nodes = list[str](), list[str]()
    patterns, selectors = list[re.Pattern[str]](), list[tuple[LabelExpression, ...]]()
    for i, member in enumerate(found.spec.members):
        at, select = f"spec.members[{i}].selector", member.selector
        exact, regex, label = select.exact_match, select.regex_match, select.label_match
        if [exact, regex, label].count(None) != 2:  # noqa: PLR2004 - all but one of three
            problem = "does not have exactly one of exactMatch, regexMatch and labelMatch"
            raise ManifestError(at, None, problem, "write one of them")
        if exact is not None:
            into = nodes if member.type == "Node" else hyper_nodes
            into.append(dns_subdomain(exact.name, f"{at}.exactMatch.name"))
        elif member.type != "Node":
            problem = "selects HyperNodes without exactMatch"
            raise ManifestError(at, None, problem, "write one member with exactMatch for each")
        elif regex is not None:
            patterns.append(_pattern(regex.pattern, f"{at}.regexMatch.pattern"))
        elif label is not None and (label.match_labels or label.match_expressions):
            selectors.append(expressions(label, f"{at}.labelMatch"))
    return HyperNode(
        dns_subdomain(found.metadata.name, "metadata.name"),
        found.spec.tier,
        found.spec.tier_name,
        tuple(nodes),
        tuple(hyper_nodes),
        tuple(patterns),
        tuple(selectors),
    )


def _pattern(text: str, field: str) -> re.Pattern[str]:
    # Volcano's expressions take linear time. Ours do not, so patterns that may be slow are refused.
    plain = _LITERAL.sub("x", text).replace("(?:", "(")
    repeats, choices = len(re.findall(r"[*+{]", plain)), len(re.findall(r"[?|]", plain))
    repeats += not plain.startswith("^") or "|" in re.sub(r"\([^()]*\)", "", plain)
    if repeats > REPEATS_MAX or choices > CHOICES_MAX[repeats]:
        problem = f"has more than {REPEATS_MAX} repetitions, or too many alternatives"
        raise ManifestError(field, text, problem, f"begin with ^, or {_PATTERN_FIX}")
    if re.search(r"\)[*+?{]|\(\?|\\", plain):
        problem = "has a repeated group, a back reference or a flag"
        raise ManifestError(field, text, problem, _PATTERN_FIX)
    if any("[:" in found[1:] for found in _LITERAL.findall(text)):
        problem = "has a named character class"
        raise ManifestError(field, text, problem, "write the characters, such as [0-9]")
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise ManifestError(field, text, f"is not a pattern: {error}", _PATTERN_FIX) from None


def read_topology(document: dict[str, Any]) -> Topology:
    """Read a Topology of KAI. Raises ManifestError if a level cannot be used."""
    found = typed(document, kube.KaiTopologyObject)
    levels, aliases = list[str](), dict[str, str]()
    for i, level in enumerate(found.spec.levels):
        field = f"spec.levels[{i}].nodeLabel"
        if qualified_name(level.node_label, field) in levels:
            fix = "name each label once"
            raise ManifestError(field, level.node_label, "is the label of two levels", fix)
        levels.append(level.node_label)
    for i, level in enumerate(found.spec.levels):
        if level.alias in levels or level.alias in aliases:
            problem, fix = "is the name of two levels", "rename one of them"
            raise ManifestError(f"spec.levels[{i}].alias", level.alias, problem, fix)
        if level.alias:
            aliases[level.alias] = level.node_label
    name = dns_subdomain(found.metadata.name, "metadata.name")
    return Topology(name, tuple(levels), aliases)


class HyperNodes:
    """The tree of a cluster's HyperNodes. `problem` says which of them is ignored, if any is."""

    def __init__(self, found: Mapping[str, HyperNode]) -> None:
        self._found = found
        self._parents: dict[str, str] = {}
        self._direct: dict[str, list[str]] = {}  # by name of the node
        self.problem = ""
        self._names: dict[str, int] = {}
        for name, each in sorted(found.items()):
            self._names[each.tier_name] = min(each.tier, self._names.get(each.tier_name, each.tier))
            for node in each.nodes:
                self._direct.setdefault(node, []).append(name)
            for child in each.hyper_nodes:
                self._adopt(each, child)
        self.tiers = sorted({each.tier for each in found.values()})
        self._highest = max(self.tiers, default=0)
        if len(self.tiers) > LEVELS_MAX:
            self.problem = f"of {len(self.tiers)} tiers, only the lowest {LEVELS_MAX} are used"
            self.tiers = self.tiers[:LEVELS_MAX]
        self._selecting = [each for _, each in sorted(found.items()) if _selectors(each)]
        if sum(map(_selectors, self._selecting)) > SELECTORS_MAX:
            self.problem = (
                f"members by pattern or label are ignored, because there are more than "
                f"{SELECTORS_MAX}; use exactMatch"
            )
            self._selecting = []

    def _adopt(self, parent: HyperNode, child: str) -> None:
        below = self._found.get(child)
        if below is None:
            return
        if below.tier >= parent.tier:
            self.problem = (
                f"{child} is a member of {parent.name}, but its tier {below.tier} is not below "
                f"{parent.tier}; lower it"
            )
        elif self._parents.setdefault(child, parent.name) != parent.name:
            self.problem = (
                f"{child} is a member of {self._parents[child]} and {parent.name}, and only the "
                "first counts; remove it from the other"
            )

    def labels(self, node: str, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the node's labels with one for each tier; `labels` are those of Kubernetes."""
        chosen: dict[int, str] = {}
        around = ((self._found[name].tier, name) for name in self._around(node, labels))
        for _, name in sorted(around):
            at = name
            while at:
                first = chosen.setdefault(self._found[at].tier, at)
                if first != at:
                    self.problem = (
                        f"node {node} is in {first} and {at} of the same tier, and only the first "
                        "counts; remove it from the other"
                    )
                at = self._parents.get(at, "")
        found = {key: value for key, value in labels.items() if not key.startswith(TIER)}
        highest = ""
        for tier in self.tiers:
            highest = chosen.get(tier, highest)
            if highest:
                found[f"{TIER}{tier}"] = highest
        return found

    def _around(self, node: str, labels: Mapping[str, str]) -> Iterator[str]:
        # The HyperNodes with the node as a direct member, by name.
        yield from self._direct.get(node, ())
        for each in self._selecting:
            if any(pattern.search(node) for pattern in each.patterns) or any(
                all(holds(term, labels.get(term.key)) for term in selector)
                for selector in each.selectors
            ):
                yield each.name

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the labels of all tiers, the highest first."""
        return tuple(f"{TIER}{tier}" for tier in reversed(self.tiers))

    def level_of(self, wanted: str) -> str:
        """Return the label of the highest tier up to `wanted`; `wanted` if there is none.

        Return "" if `wanted` is above all tiers: there, Volcano adds a HyperNode with all nodes."""
        number = wanted.removeprefix(TIER)
        if wanted.startswith(TIER_NAME):
            most = self._names.get(wanted.removeprefix(TIER_NAME), -1)
        else:
            most = int(number) if wanted.startswith(TIER) and number.isdecimal() else -1
        if most > self._highest:
            return ""
        allowed = [tier for tier in self.tiers if tier <= most]
        return f"{TIER}{allowed[-1]}" if allowed else wanted


def _selectors(hyper_node: HyperNode) -> int:
    return len(hyper_node.patterns) + len(hyper_node.selectors)


def levels_of_volcano(network: kube.NetworkTopology | None, field: str) -> dict[str, Any]:
    """Return the levels of a PodGroup or Job of Volcano, by field of `PodGroupObserved`.

    A hard topology without a tier has no effect, as in Volcano. Raises ManifestError."""
    if network is None:
        return {}
    tier, name = network.highest_tier_allowed, network.highest_tier_name
    if tier is not None and name:
        problem = "is set together with highestTierAllowed"
        raise ManifestError(f"{field}.highestTierName", name, problem, "remove one of the two")
    if network.mode == "soft":
        return {"preferred_level": ANY_TIER}
    if tier is None and not name:
        return {}
    required = f"{TIER_NAME}{name}" if name else f"{TIER}{tier}"
    return {"required_level": required, "preferred_level": ANY_TIER}


def parts_of_volcano(policies: list[kube.SubGroupPolicy]) -> tuple[GangPart, ...]:
    """Return the subgroups of a Volcano PodGroup. Raises ManifestError for any that Volcano's
    controller would not make of the partitions of a task."""
    parts = []
    for i, policy in enumerate(policies):
        at, selector = f"spec.subGroupPolicy[{i}]", policy.label_selector or kube.LabelSelector()
        task = selector.match_labels.get(TASK)
        if (
            not isinstance(task, str)
            or len(selector.match_labels) > 1
            or selector.match_expressions
        ):
            problem, fix = f"must select pods only by label {TASK}", "use partitionPolicy in a task"
            raise ManifestError(f"{at}.labelSelector", None, problem, fix)
        if len(policy.match_label_keys) > 1:
            problem, fix = "has more than one key", "name one key"
            raise ManifestError(f"{at}.matchLabelKeys", policy.match_label_keys, problem, fix)
        part = GangPart(
            tasks=(dns_label(task, f"{at}.labelSelector.matchLabels"),),
            split_by=next(iter(policy.match_label_keys), ""),
            size=policy.sub_group_size,
            **levels_of_volcano(policy.network_topology, f"{at}.networkTopology"),
        )
        parts.append(part)
    return tuple(parts)


def parts_of_kai(spec: kube.KaiGroupSpec) -> tuple[GangPart, ...]:
    """Return the subgroups of a KAI PodGroup that have levels, the outer ones first.

    Raises ManifestError if a subgroup's parent is missing or in a cycle, if subgroups are nested
    too deeply, or if minSubGroup is not the number of top-level subgroups."""
    tops = sum(not each.parent for each in spec.sub_groups)
    if spec.min_sub_group not in (None, 0, tops):
        problem, fix = f"must be {tops}, the number of outer subgroups", "set minMember instead"
        raise ManifestError("spec.minSubGroup", spec.min_sub_group, problem, fix)
    whole = spec.topology_constraint.topology
    named = {each.name: each for each in spec.sub_groups}
    tasks: dict[str, list[str]] = {
        dns_label(each.name, f"spec.subGroups[{i}].name"): []
        for i, each in enumerate(spec.sub_groups)
    }
    parents = {each.parent for each in spec.sub_groups}
    for i, each in enumerate(spec.sub_groups):
        above = [each.name]
        while parent := named[above[-1]].parent:
            if parent not in named or parent in above:
                problem = "does not exist, or is inside this subgroup"
                field = f"spec.subGroups[{i}].parent"
                raise ManifestError(field, each.parent, problem, "name another subgroup")
            above.append(parent)
        if len(above) > DEPTH_MAX:
            problem = f"nests this subgroup more than {DEPTH_MAX - 1} levels deep"
            field = f"spec.subGroups[{i}].parent"
            raise ManifestError(field, each.parent, problem, "nest fewer subgroups")
        for name in above if each.name not in parents else ():
            tasks[name].append(each.name)
    parts = []
    for each in spec.sub_groups:
        levels = each.topology_constraint
        required, preferred = levels.required_topology_level, levels.preferred_topology_level
        if not (required or preferred):
            continue
        leaves = tuple(tasks[each.name])
        own = levels.topology if levels.topology != whole else ""
        parts.append(
            GangPart(tasks=leaves, required_level=required, preferred_level=preferred, topology=own)
        )
    if sum(len(part.tasks) for part in parts) > NESTED_MAX:
        problem = f"has more than {NESTED_MAX} nested subgroups"
        raise ManifestError("spec.subGroups", None, problem, "nest fewer subgroups")
    return tuple(sorted(parts, key=lambda part: -len(part.tasks)))


def resolved(
    group: PodGroupObserved, topologies: Mapping[str, Topology], hyper_nodes: HyperNodes
) -> PodGroupObserved:
    """Return the PodGroup with the label keys of its levels, and of its whole topology.

    Levels that the topology lacks stay as written: as the keys of labels."""
    levelled: list[PodGroupObserved | GangPart] = [group, *group.parts]
    if any(each.topology for each in levelled):
        whole = _of_kai(group, topologies)
        return structs.replace(
            whole, parts=tuple(_of_kai(part, topologies, group.topology) for part in group.parts)
        )
    levels = (level for each in levelled for level in (each.required_level, each.preferred_level))
    if not hyper_nodes.tiers or not any(level.startswith(TIER) for level in levels):
        return group
    parts = tuple(_of_volcano(part, hyper_nodes) for part in group.parts)
    whole = _of_volcano(group, hyper_nodes)
    return structs.replace(whole, levels=hyper_nodes.levels, parts=parts)


def _of_kai(each: L, topologies: Mapping[str, Topology], default: str = "") -> L:
    topology = topologies.get(each.topology or default)
    if topology is None:
        return each
    required, preferred = each.required_level, each.preferred_level
    return structs.replace(
        each,
        required_level=topology.aliases.get(required, required),
        preferred_level=topology.aliases.get(preferred, preferred),
        levels=topology.levels if each.topology else (),
    )


def _of_volcano(each: L, hyper_nodes: HyperNodes) -> L:
    required, preferred = each.required_level, each.preferred_level
    lowest = hyper_nodes.levels[-1] if preferred == ANY_TIER else preferred
    return structs.replace(
        each, required_level=hyper_nodes.level_of(required), preferred_level=lowest
    )
