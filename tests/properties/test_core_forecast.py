"""Properties of forecasts of pods' start times, over random histories of a crowded cluster."""

from hypothesis import given

from apportion.core.explain.text.answer_text import start_seconds, start_words
from apportion.core.forecast.line import Line
from apportion.core.forecast.waits import STARTS_LEAST, Band, Situation
from apportion.core.ledger.state import PENDING
from tests.properties.core_histories import Step, trying
from tests.properties.core_playing import changes
from tests.properties.test_core_reports import HISTORIES
from tests.support.ledger_of import Ledger

HERE = Situation(0.0, 0.0, queue=0, kind=0, size=0)


@trying(50)
@given(HISTORIES)
def test_line_has_the_pods_of_the_state(steps: list[Step]) -> None:
    """A forecast line that follows all events has the same pods as one that starts from the state.

    Every pending pod has either a forecast of three start times in order, none of them in the
    past, or a reason why its start is unknown."""
    ledger = Ledger()
    line = Line(ledger.state)
    for _ in range(STARTS_LEAST):  # so that forecasts are possible
        line.waits.started(line.waits.note(HERE, 0.0, Band(0.0, 1.0, 2.0, 9.0)), 60.0)
    for number, change in enumerate(changes(ledger, steps)):
        if not change.refused:
            line.observe(change.data, 1_000.0 + 60 * number)
    begun = Line(ledger.state)
    for pod in ledger.state.pods.values():
        waits = pod.phase is PENDING and not pod.submitted.gates and bool(pod.submitted.shape.asks)
        found = line.situation(pod.uid)
        assert (found is not None) == waits == (begun.situation(pod.uid) is not None)
        forecast = line.forecast(pod)
        assert (forecast is not None) == (pod.phase is PENDING)
        if forecast is not None:
            if not forecast.unknown:
                earliest, median, latest = start_seconds(forecast, 0.0)
                assert 0 <= earliest <= median <= latest
            assert bool(forecast.unknown) == (forecast.median == "")
            assert forecast.within <= forecast.judged
            start_words(forecast, 0.0)
