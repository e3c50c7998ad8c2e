"""Nothing is left to be compiled when the first real decision is made."""

import subprocess
import sys

COUNT = """
from numba.core.dispatcher import Dispatcher
from apportion.scheduler.warming import warm_up
from apportion.core.placement.index import compiled
warm_up()
compiling = []
real = Dispatcher.compile
Dispatcher.compile = lambda self, sig: compiling.append(self) or real(self, sig)
from tests.support.fleet import npu, node, rack
from tests.support.ledger_of import Ledger
from tests.support.pods import ask, cards, gang, member, pod
ledger = Ledger(rack("n1", 8), rack("n2", 4, model="Tesla T4"), gang("team/job", 2))
ledger.submit(pod("a", ask(4096, cores=10)), pod("b", cards(2)), pod("c", ask(1, cores=0)))
ledger.submit(member("g1", ask(2048)), member("g2", ask(2048)), pod("d", cards(64))).settle()
assert ledger.where("a") and ledger.where("b") and ledger.where("g1")
ledger.gone("a").settle().gone("c").settle()
print(len(compiling))
"""


def test_a_first_decision_compiles_nothing() -> None:
    """In a process of its own, where nothing else has been decided."""
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
