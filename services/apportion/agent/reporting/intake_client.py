"""How an agent's events come to the ledger: through an intake, which judges and appends them.

Invariant: what was not answered is asked again, with the same bytes and so the same id, until it
is; a refusal by name ends the asking, is said aloud, and ends nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from apportion.core.intake.answers import EXPECTED, SUBJECT, Answer, decode_answer
from apportion.runtime.ledger.batching import Appended
from apportion.runtime.ledger.port import Draft, Ledger, LedgerUnavailable
from apportion.runtime.ledger.publisher import Insistence
from apportion.runtime.process.clock import Clock
from apportion_schemas.catalogue import SUBJECTS, untoken

ANSWER_S: Final = 10.0
UNDER_WAY_MAX: Final = 32
"""Of one node at once; an intake keeps twice as many."""
_INVENTORY: Final = f"{SUBJECTS}.inventory."

_log = logging.getLogger(__name__)


class HeldBack(Exception):
    """The report changes so much that it is believed once it is made again, `again_s` later."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.again_s = answer.again_s


class IntakeClient:
    """The way of all nodes of one agent."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._insistence = Insistence(self._ask, clock)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._refused: dict[str, str] = {}

    async def append(self, draft: Draft) -> Appended:
        """Return once it is on the ledger, or refused: then without a revision.

        Raises:
            HeldBack: look at the node again, and report what is there then.
            NotPermitted: this agent may not speak for that node.
        """
        return await self._insistence.append(draft)

    def not_ready(self) -> list[str]:
        """What of the nodes' inventory the intake does not believe, by name."""
        return [f"the intake refuses the report of {node}: {why}" for node, why in
                sorted(self._refused.items())]  # fmt: skip

    async def _ask(self, draft: Draft) -> Appended:
        token = draft.subject.rpartition(".")[2]
        turn = self._turns.setdefault(token, asyncio.Semaphore(UNDER_WAY_MAX))
        async with turn:
            reply = await self._ledger.request(f"{SUBJECT}.{token}", draft.payload, ANSWER_S)
        try:
            answer = decode_answer(reply)
        except msgspec.DecodeError as error:
            raise LedgerUnavailable(f"the intake's answer cannot be read: {error}") from None
        if answer.held:
            _log.warning("held back until it is seen again: %s", answer.why)
            raise HeldBack(answer)
        if answer.again_s:
            raise LedgerUnavailable(
                f"the intake takes nothing now: {answer.why}", again_s=answer.again_s
            )
        self._note(draft, untoken(token), answer)
        return Appended(answer.revision, already_there=answer.duplicate)

    def _note(self, draft: Draft, node: str, answer: Answer) -> None:
        inventory = draft.subject.startswith(_INVENTORY)
        if not answer.refused:
            if inventory:
                self._refused.pop(node, None)
            return
        said = f"{answer.refused}: {answer.why}"
        if answer.refused in EXPECTED:
            _log.info("%s is passed over, %s", draft.id, said)
            return
        if self._refused.get(node) != said:  # else it was said a minute ago
            _log.error("the intake refuses %s of node %s, %s", draft.id, node, said)
        if inventory:
            self._refused[node] = said
