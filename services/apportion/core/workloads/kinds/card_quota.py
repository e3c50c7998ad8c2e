"""The card quota of a Volcano queue: how many cards of which model it may hold.

The names and the form are those of Volcano's capacity-card: one JSON object in an annotation, as in
`{"NVIDIA-A100": 8, "NVIDIA-H200/mig-1g.18gb-mixed": 2}`. Invariant: a quota that cannot be read is
no quota of nothing: whoever wrote it is told.
"""

from collections.abc import Mapping

import msgspec

from apportion.core.workloads.dialects.amounts import AMOUNT_MAX, whole
from apportion.core.workloads.dialects.errors import ManifestError, within
from apportion_schemas.decoding import from_outside

CARD_QUOTA = "volcano.sh/card.quota"
CARDS_MAX = 256
NAME_MAX = 317
_decode = from_outside(msgspec.json.Decoder(dict[str, object]).decode)
_FIX = 'write cards by model, as in {"NVIDIA-A100": 8}'


def card_quota(annotations: Mapping[str, str]) -> dict[str, int]:
    """The quota in a queue's annotations; empty where there is none.

    Raises:
        ManifestError: names the annotation, or the card in it.
    """
    written = annotations.get(CARD_QUOTA)
    if not written:
        return {}
    field = within("metadata.annotations", CARD_QUOTA)
    try:
        cards = _decode(written)
    except msgspec.MsgspecError:
        raise ManifestError(field, written, "is no JSON object", _FIX) from None
    if len(cards) > CARDS_MAX or any(not 0 < len(card) <= NAME_MAX for card in cards):
        raise ManifestError(
            field,
            written,
            "has too many cards, or a name that is empty or too long",
            f"name at most {CARDS_MAX} cards in up to {NAME_MAX} characters each",
        )
    return {
        card: whole(count, within(field, card), limit=AMOUNT_MAX)
        for card, count in sorted(cards.items())
    }
