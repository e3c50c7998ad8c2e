"""Hypothesis strategies for histories with evictions: many pods compete for few devices."""

from hypothesis import strategies as st

from apportion_schemas import Ask, BudgetObserved, LabelExpression, QueueObserved, Shape
from tests.properties.core_histories import (
    Decide,
    Step,
    decisions,
    effects,
    exactly,
    payloads,
    submissions,
    usual_shapes,
    weighed,
)
from tests.support.fleet import rack
from tests.support.pods import gang

_LARGE = [
    Shape(asks=(Ask(container="c0", family="nvidia", count=count, cores=cores),))
    for count, cores in ((1, 100), (1, 60), (2, 100), (1, 30))
]
"""Shapes of which few fit on one device or node together."""
budgets = st.builds(
    BudgetObserved,
    namespace=st.just("default"),
    budget=st.sampled_from(("b", "c")),
    selector=st.sampled_from(((LabelExpression(key="app", operator="Exists"),), ())),
    allowed=st.integers(0, 2),
)


def crowded_histories(*, longest: int = 32) -> st.SearchStrategy[list[Step]]:
    """Draw a history in which many pods compete for few devices, some with disruption budgets."""
    comers = submissions(wanted=weighed((5, st.sampled_from(_LARGE)), (1, usual_shapes)))
    start = st.tuples(
        st.just([rack("roomy", 2), rack("other", 1), gang("team/x"), gang("team/y")]),
        st.lists(budgets, max_size=2),
        st.lists(comers, min_size=4, max_size=8),
        st.just([Decide()]),
        st.lists(comers, min_size=4, max_size=8),
        st.just([Decide()]),
    ).map(lambda parts: [step for part in parts for step in part])
    steps: st.SearchStrategy[Step] = weighed(
        (4, comers), (1, payloads), (1, budgets), (2, effects), (5, decisions)
    )
    return st.builds(lambda begun, on: [*begun, *on], start, exactly(steps, longest))


_TREE = [
    QueueObserved(queue="dept", deserved={"nvidia.com/gpu": 2}),
    QueueObserved(queue="ml", parent="dept", deserved={"nvidia.com/gpu": 1}),
    QueueObserved(queue="web", parent="dept", deserved={"nvidia.com/gpu": 1}),
    QueueObserved(queue="default", weight=2),
]
_trees = st.builds(
    QueueObserved,
    queue=st.sampled_from(("dept", "ml", "web", "default")),
    parent=st.sampled_from(("", "", "dept")),
    deserved=st.sampled_from(({}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2})),
    weight=st.integers(0, 3),
    reclaimable=st.sampled_from((True, True, False)),
)


def lending_histories(*, longest: int = 24) -> st.SearchStrategy[list[Step]]:
    """Draw a history in which queues borrow from one another and more pods are created than fit."""
    comers = submissions(wanted=st.sampled_from(_LARGE), queues=("ml", "web", "default"))
    start = st.tuples(
        st.just([rack("roomy", 3), rack("other", 1), gang("team/x", queue="ml"), *_TREE]),
        st.lists(comers, min_size=4, max_size=8),
        st.just([Decide()]),
        st.lists(comers, min_size=4, max_size=8),
        st.just([Decide()]),
    ).map(lambda parts: [step for part in parts for step in part])
    steps: st.SearchStrategy[Step] = weighed((5, comers), (1, _trees), (2, effects), (5, decisions))
    return st.builds(lambda begun, on: [*begun, *on], start, exactly(steps, longest))
