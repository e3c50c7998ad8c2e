"""Print why a pod is placed or pending, as tables for `why` and `plan`."""

import textwrap
from collections.abc import Sequence

from apportion.cli.render.output import Screen, show
from apportion.cli.render.rows import Rows
from apportion.core.answers.reads import HeldShare, MissRow, WhyPlaced, WhyRefused
from apportion.core.explain.text.event_text import share_words, shares_words
from apportion.core.explain.text.words import device_words, many


def show_placed(out: Screen, placed: WhyPlaced) -> None:
    """Print the pod's shares, and the scores that decided the placement."""
    held = Rows("CONTAINER", "SHARE", "#", "MODEL", right=("#",), wraps=("SHARE", "MODEL"),
                drops=("MODEL", "#"))  # fmt: skip
    for share in placed.shares:
        held.add_row(
            share.share.container, share_words(share.share, share.family),
            str(share.index) if share.index >= 0 else "", share.model,
        )  # fmt: skip
    if placed.shares:
        show(held, out)
    parts = list(placed.score.parts)
    columns = [part.upper() for part in parts]
    scores = Rows("NODE", "SCORE", *columns, drops=reversed(columns))
    row = [f"{placed.score.parts[part]:.1f}" for part in parts]
    scores.add_row(placed.node, f"{placed.score.total:.1f}", *row, style="green")
    for other in placed.runners_up:
        row = [f"{other.parts[part]:.1f}" if part in other.parts else "" for part in parts]
        scores.add_row(other.node, f"{other.total:.1f}", *row)
    show(scores, out)
    more = placed.fitting - 1 - len(placed.runners_up)
    lines = [f"and {many(more, 'more node')} that fit{'' if more > 1 else 's'}"] if more > 0 else []
    for line in (*lines, *([placed.choice] if placed.choice else [])):
        out.say(line, "dim", folds=True)


def held_words(held: Sequence[HeldShare]) -> str:
    """Return a pod's shares as text, equal ones combined."""
    families = {each.share.container: each.family for each in held}
    return shares_words((each.share for each in held), families)


def show_refused(out: Screen, refused: WhyRefused) -> None:
    """Print the reasons that rule out nodes, and the nodes that nearly fit."""
    of_nodes = any(cause.nodes for cause in refused.causes)  # a limit counts no nodes
    causes = Rows("NODES", "CAUSE", "FIX", right=("NODES",), wraps=("CAUSE", "FIX"),
                  optional=("NODES",))  # fmt: skip
    for cause in refused.causes:
        causes.add_row(str(cause.nodes) if of_nodes else "", cause.words, cause.unblocked_by)
    out.print(causes)
    if not refused.nearest:
        return
    held = any(miss.held_by for miss in refused.nearest)
    misses = Rows("NEAREST", "DEVICE", "CAUSE", "NEEDED", "FREE", "MISSING",
                  "USED BY", right=("NEEDED", "FREE", "MISSING"),
                  wraps=("CAUSE", "USED BY"), optional=("USED BY",),
                  drops=("NEEDED", "FREE", "DEVICE"))  # fmt: skip
    for miss in refused.nearest:
        misses.add_row(
            miss.node, device_words(miss.device), miss.words, miss.needed_words,
            miss.available_words, miss.missing, _held_by(miss) if held else "",
        )  # fmt: skip
    if not misses.crowded(out.width):
        show(misses, out)
        return
    for miss in refused.nearest:
        amounts = (("needed", miss.needed_words), ("free", miss.available_words),
                   ("missing", miss.missing))  # fmt: skip
        lines = [f"nearest: {miss.node} {device_words(miss.device)}".rstrip(), f"  {miss.words}"]
        lines += [f"  {', '.join(f'{what} {much}' for what, much in amounts if much)}"]
        lines += [f"  used by {_held_by(miss)}"] if miss.held_by else []
        for line in lines:
            for part in textwrap.wrap(
                line, out.width, subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            ):  # fmt: skip
                out.say(part)


def _held_by(miss: MissRow) -> str:
    more = miss.holders - len(miss.held_by)
    return ", ".join(miss.held_by) + (f" and {more:,} more" if more > 0 else "")
