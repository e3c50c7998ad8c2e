"""Properties: a gang is placed on one device model if a model has room for it.

This holds however many batches the gang is placed in."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.core.explain.views import gang_models
from apportion_schemas import PodPlaced, RefusalCode
from tests.properties.core_histories import trying
from tests.support.fleet import A30, T4, V100, gpu, node, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import cards, gang, member, pod

SETTINGS = trying(60)
MODELS = (A30, T4, V100)
nodes = st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, 4)), min_size=1, max_size=6)


def room(fleet: list[tuple[str, int]], each: int) -> dict[str, int]:
    """Return how many pods with `each` GPUs fit on the devices of each model."""
    found: dict[str, int] = {}
    for model, count in fleet:
        found[model] = found.get(model, 0) + count // each
    return found


def fleet_of(fleet: list[tuple[str, int]]) -> Ledger:
    """Return a ledger with a node for each model and number of GPUs."""
    return Ledger(*(rack(f"n{at}", count, model=model) for at, (model, count) in enumerate(fleet)))


@SETTINGS
@given(nodes, st.integers(2, 8), st.integers(1, 2), st.integers(1, 4))
def test_a_gang_gets_one_model_if_any_has_room(
    fleet: list[tuple[str, int]], size: int, each: int, batch: int
) -> None:
    """If one device model has room for a gang of equal pods, the whole gang is placed on one model.

    Otherwise no pod of the gang is placed."""
    ledger = fleet_of(fleet)
    ledger.engine.limit_batches(batch)
    ledger.play(gang(min_available=size), *(member(f"m{n}", cards(each)) for n in range(size)))
    ledger.settle()
    group = ledger.state.groups["team/job"]
    most = max(room(fleet, each).values())
    assert not group.held
    if most >= size:
        assert list(gang_models(ledger.state, group).values()) == [size]
        return
    assert gang_models(ledger.state, group) == {}
    shortage = ledger.refusal("m0").gang
    assert shortage is not None
    assert shortage.fitting == most
    mixed = sum(room(fleet, each).values()) >= size
    if mixed:
        assert RefusalCode.GANG_MODEL_MISMATCH in ledger.reasons("m0")


@SETTINGS
@given(nodes, st.integers(2, 6), st.data())
def test_a_lost_member_is_replaced_on_its_model_before_younger_pods(
    fleet: list[tuple[str, int]], size: int, data: st.DataObject
) -> None:
    """Replacements of lost gang members are placed before younger pods, on the gang's model."""
    ledger = fleet_of(fleet)
    ledger.play(gang(min_available=size), *(member(f"m{n}", cards()) for n in range(size)))
    ledger.settle()
    if not ledger.where("m0"):
        return
    (model,) = gang_models(ledger.state, ledger.state.groups["team/job"])
    ledger.submit(*(pod(f"p{n}", cards()) for n in range(24))).settle()
    lost = data.draw(st.integers(1, size - 1))
    ledger.gone(*(f"m{n}" for n in range(lost)))
    ledger.submit(*(member(f"again{n}", cards()) for n in range(lost)))
    placed = [event.pod for event in ledger.decide() if isinstance(event, PodPlaced)]
    assert placed == [f"again{n}" for n in range(lost)]
    assert gang_models(ledger.state, ledger.state.groups["team/job"]) == {model: size}


@SETTINGS
@given(nodes, st.integers(2, 6), st.integers(1, 4), st.data())
def test_a_node_with_several_models_changes_nothing_elsewhere(
    fleet: list[tuple[str, int]], size: int, batch: int, data: st.DataObject
) -> None:
    """A node with devices of several models, all unhealthy, does not change where pods are placed.

    If no node has several models, the engine places a gang without scores of its own."""
    plain, beside = fleet_of(fleet), fleet_of(fleet)
    broken = (gpu(f"g{at}", model=model, healthy=False) for at, model in enumerate(MODELS))
    beside.report(node("n9", *broken))
    for number in range(data.draw(st.integers(1, 3))):
        least = data.draw(st.integers(1, size))
        each = cards(data.draw(st.integers(1, 2)))
        leaving = data.draw(st.integers(0, 1))
        for ledger in (plain, beside):
            name = f"job{number}"
            ledger.engine.limit_batches(batch)
            ledger.play(gang(f"team/{name}", min_available=least), pod(f"p{number}", cards()))
            ledger.submit(*(member(f"{name}-{n}", each, group=f"team/{name}") for n in range(size)))
            ledger.settle()
            ledger.gone(*[f"{name}-{n}" for n in range(leaving)])
            ledger.settle()
    placed = [
        {uid: each.placement and each.placement.shares for uid, each in ledger.state.pods.items()}
        for ledger in (plain, beside)
    ]
    assert placed[0] == placed[1]
