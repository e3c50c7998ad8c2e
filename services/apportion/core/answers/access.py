"""What the gateway says of who asks it, and takes of who acts through it."""

from typing import Annotated

from msgspec import Meta

from apportion.core.answers.reads import Answer


class MeAnswer(Answer, frozen=True):
    """Who asks. Without a `login` nobody is known, and everybody reads everything.

    `all`: he reads all that the ledger says, and else what is of his namespaces; `doctor`: he sees
    the doctor; `cordons`: he may take nodes off offer, and put them back."""

    login: bool
    name: str = ""
    all: bool = False
    doctor: bool = False
    cordons: bool = False


class LoginRequest(Answer, frozen=True, forbid_unknown_fields=True):
    """The body of a login."""

    token: str


class CordonRequest(Answer, frozen=True, forbid_unknown_fields=True):
    """The body of a cordon, which needs a reason, or of an uncordon: `of` is whose reason to lift,
    his own where nobody is named."""

    reason: Annotated[str, Meta(max_length=1024)] = ""
    of: Annotated[str, Meta(max_length=253)] = ""


class ActAnswer(Answer, frozen=True):
    """What was appended: which event of what, at which revision, and by whom."""

    revision: int
    event: str
    target: str
    by: str
    reason: str = ""
