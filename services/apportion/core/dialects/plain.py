"""The plain names of NVIDIA's own device plugin: `nvidia.com/gpu: N`, and MIG instances by profile.

N whole cards, as under that plugin, unless a default amount of memory is configured. With
`migStrategy: mixed` there is `nvidia.com/mig-1g.5gb: N` beside it: N instances of that profile, on
one card or on several; without, such a name is whatever a node's own plugin offers under it.
"""

from apportion.core.devices.catalogue import FAMILIES
from apportion.core.dialects import hami, measures, vgpu, volcano_vgpu
from apportion.core.dialects.container import Amount, Amounts, Container
from apportion.core.dialects.dialect import Dialect
from apportion.core.dialects.names import DialectConfig
from apportion.core.dialects.placed_pod import PlacedPod
from apportion_schemas import Ask
from apportion_schemas.quantities import WHOLE

NAME = "plain"
MIG = "nvidia.com/mig-"
PROFILES = {
    MIG + profile.name: profile.name
    for model in FAMILIES[vgpu.FAMILY].models
    for profile in model.profiles
}
"""Resource to profile, of every model that we know."""


def of(config: DialectConfig) -> tuple[Dialect, ...]:
    """The dialect as configured."""
    claims = {config.plain_count, *(PROFILES if config.mig_by_profile else ())}

    def read(container: Container, amounts: Amounts) -> Ask | None:
        cards = amounts.get(config.plain_count)
        asked = [(name, a) for name, a in amounts.items() if a.value and name in PROFILES]
        if asked:
            return _instances(container, cards, asked)
        if cards is None or cards.value == 0:
            return None
        memory_mib = config.default_memory_mib or None
        return Ask(
            container=container.name,
            family=vgpu.FAMILY,
            count=measures.count(cards),
            memory_mib=memory_mib,
            cores=WHOLE if memory_mib is None else config.default_cores,
            init=container.role == "init",
        )

    return (Dialect(NAME, frozenset(claims), read),)


def _instances(container: Container, cards: Amount | None, asked: list[tuple[str, Amount]]) -> Ask:
    (name, amount), *others = asked
    second = others[0][1] if others else cards if cards and cards.value else None
    if second is not None:
        raise second.refusal(
            f"is asked beside {name} in one container", "keep one kind per container"
        )
    return Ask(
        container=container.name,
        family=vgpu.FAMILY,
        count=measures.count(amount),
        profile=PROFILES[name],
        init=container.role == "init",
    )


def render(it: PlacedPod) -> dict[str, str]:
    """What the plugin wants that has the plain name for its own; NVIDIA's own one wants nothing."""
    if all(it.devices[share.device].mode == "exclusive" for share in it.placed.shares):
        return {}
    volcano = it.config.volcano_vgpu.count == it.config.plain_count
    return volcano_vgpu.render(it) if volcano else hami.render(it)
