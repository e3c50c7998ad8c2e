"""Request bodies and answers of the API for login, cordon and uncordon."""

from typing import Annotated

from msgspec import Meta

from apportion.core.answers.reads import Answer


class MeAnswer(Answer, frozen=True):
    """The client's name and its rights. Without a login, every client may read everything."""

    login: bool
    name: str = ""
    all: bool = False  # may read every namespace
    doctor: bool = False  # may run the doctor
    cordons: bool = False  # may cordon and uncordon nodes


class LoginRequest(Answer, frozen=True, forbid_unknown_fields=True):
    """The body of a login request."""

    token: str


class CordonRequest(Answer, frozen=True, forbid_unknown_fields=True):
    """The body of a request to cordon or uncordon a node or device. A cordon needs a reason."""

    reason: Annotated[str, Meta(max_length=1024)] = ""
    of: Annotated[str, Meta(max_length=253)] = ""  # whose cordon to lift; by default the caller


class ActAnswer(Answer, frozen=True):
    """The event that the request appended to the ledger."""

    revision: int
    event: str
    target: str
    by: str
    reason: str = ""
