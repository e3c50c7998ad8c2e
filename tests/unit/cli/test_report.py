"""Tables of reports: what stands in a row says something."""

import io

from rich.console import Console

from apportion.cli.report import rows_of
from tests.support.accounts import Accounted
from tests.support.fleet import rack
from tests.support.pods import placed, pod, share


def test_steps_say_what_was_free_in_the_row_of_nobody() -> None:
    """It granted nothing and used nothing, and says no noughts about that."""
    accounted = Accounted(hours=2, step=2).at(0, rack("n1", 1), pod("p1"))
    accounted.at(1, placed("p1", shares=[share("n1-g0", 40_960)]))
    answer = accounted.report()
    out = Console(file=io.StringIO(), width=200, color_system=None)
    out.print(rows_of(answer, answer.steps, money=False, steps=True))
    assert isinstance(out.file, io.StringIO)
    head, nobody, default = out.file.getvalue().splitlines()
    assert head.split()[-3:] == ["FREE", "CORDONED", "BROKEN"]
    assert nobody.split()[1:] == ["(nobody)", "1.50", "0.00", "0.00"]
    assert default.split()[1:3] == ["default", "0.50"]
