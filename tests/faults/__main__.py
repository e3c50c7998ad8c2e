"""Play rounds of real faults: processes, servers and disks fail under load.

    python -m tests.faults --rounds 20 --seed 1          20 rounds, seeds 1 to 20; counts per fault
    python -m tests.faults --seed 7 --only disk,killed   one round with only these faults

A round fails if an acknowledged event is lost. The folder of a failed round is kept. It has the
servers' stores, all logs, the loader's journal, and the history of the round."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence

from click import echo

from tests.faults.rounds import Outcome, play
from tests.faults.shaking import KINDS


def main() -> int:
    """Play the requested rounds. Return exit code 0 if every round passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults, in each round")
    parser.add_argument("--rate", type=float, default=40.0, help="pods per second")
    parser.add_argument(
        "--only",
        default="",
        help="parts of the faults' names, separated by commas; other faults do not happen",
    )
    parser.add_argument("--forget", action="store_true", help="keep no folder of a wrong round")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if any(part in kind for part in given.only.split(","))]
    if not kinds:
        parser.error(
            f"--only: no fault's name contains {given.only!r}; the names are: {', '.join(KINDS)}"
        )
    struck: Counter[str] = Counter()
    wrong = []
    done: list[Outcome] = []
    for seed in range(given.seed, given.seed + given.rounds):
        try:
            outcome = asyncio.run(_play(seed, given, kinds))
        except asyncio.CancelledError:
            echo(f"seed {seed}: told to stop")
            return 1
        except Exception:  # noqa: BLE001 - told, and the next round is played
            wrong.append(seed)
            echo(f"seed {seed}: WRONG\n{traceback.format_exc()}")
            continue
        done.append(outcome)
        struck += outcome.struck
        echo(_told(outcome))
    for kind in KINDS:
        echo(f"{struck[kind]:>6}  {kind}")
    events = sum(each.events for each in done)
    acknowledged = sum(each.acknowledged for each in done)
    echo(
        f"{given.rounds} rounds, {events} events, {acknowledged} acknowledgements checked, "
        f"{sum(struck.values())} faults, {len(wrong)} wrong: {wrong}"
    )
    return 1 if wrong else 0


async def _play(seed: int, given: argparse.Namespace, kinds: Sequence[str]) -> Outcome:
    """Play one round. If SIGINT or SIGTERM interrupts the round, clean up first."""
    round_of_seed = play(
        seed, span_s=given.seconds, rate=given.rate, kinds=kinds, keep=not given.forget
    )
    playing = asyncio.ensure_future(round_of_seed)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    return await playing


def _told(outcome: Outcome) -> str:
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.struck.items()))
    return (
        f"seed {outcome.seed}: right; {outcome.events} events, {outcome.acknowledged} "
        f"acknowledgements, {outcome.allocated} pods allocated, {outcome.pending} wait, disks: "
        f"{outcome.disks}, judged in {outcome.judged_s:.0f} s; {faults}"
    )


if __name__ == "__main__":
    sys.exit(main())
