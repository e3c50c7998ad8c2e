"""Tests of the token file, and of the cache of people and their rights."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from apportion.gateway.access.acts import ME
from apportion.gateway.access.gate import Cursors, Gate
from apportion.gateway.access.people import (
    KEPT_MAX,
    KEPT_NO_S,
    KEPT_S,
    READ_ALL,
    READ_DOCTOR,
    READ_METRICS,
    Person,
    Remembered,
    TokenFile,
    Wish,
    read_namespace,
)
from apportion.gateway.api.endpoint import PREFIX
from apportion.gateway.api.query import RequestRefused
from apportion.gateway.main import ENDPOINTS
from apportion.runtime.process.config import Address, ConfigError
from apportion.runtime.process.metrics import Metrics
from apportion.runtime.service.http import CLIENT, HttpServer, listening
from tests.support.tokens import people, rows


class Register:
    """A fake login service that counts its requests."""

    def __init__(self) -> None:
        self.tokens = {"t": Person("mei")}
        self.rights = {("mei", READ_ALL)}
        self.asked = 0

    async def person(self, token: str) -> Person | None:
        self.asked += 1
        return self.tokens.get(token)

    async def may(self, person: Person, wish: Wish) -> bool:
        self.asked += 1
        return (person.name, wish) in self.rights


async def test_answers_are_good_for_a_short_time() -> None:
    """The gateway caches a login's answers: a granted right for `KEPT_S`, a denied one for the
    shorter `KEPT_NO_S`."""
    now = 0.0
    register = Register()
    login = Remembered(register, now=lambda: now)
    person = Person("mei")
    for _ in range(3):
        assert await login.person("t") == person
        assert await login.may(person, READ_ALL)
        assert not await login.may(person, READ_DOCTOR)
    assert register.asked == 3
    assert login.known("t") == person
    assert login.known("other") is None
    register.tokens.clear()
    register.rights.clear()
    now = KEPT_NO_S + 0.1
    assert await login.may(person, READ_ALL)
    assert register.asked == 3
    now = KEPT_S + 0.1
    assert await login.person("t") is None
    assert not await login.may(person, READ_ALL)


async def test_memory_is_bounded() -> None:
    """The gateway's cache of unknown tokens does not grow beyond a limit."""
    login = Remembered(Register())
    for number in range(KEPT_MAX + 100):
        await login.person(str(number))
    assert len(login._nobodies._of) == KEPT_MAX


async def test_a_row_says_what_its_token_may(tmp_path: Path) -> None:
    """Each row of the token file grants its token read access to namespaces, full access, or a
    single right."""
    login = TokenFile(people(tmp_path))
    assert await login.person("nobody") is None
    wishes = (
        READ_ALL, READ_METRICS, READ_DOCTOR, read_namespace("ml"), read_namespace("ops"),
        read_namespace(""), Wish("cordon", "nodes", name="n1"), Wish("uncordon", "devices"),
    )  # fmt: skip
    for name, expected in (
        ("mei", (False, False, False, True, False, False, False, False)),
        ("olga", (True,) * 8),
        ("prometheus", (False, True, False, False, False, False, False, False)),
    ):
        person = await login.person(name)
        assert person is not None
        assert person.name == name
        assert tuple([await login.may(person, wish) for wish in wishes]) == expected


@pytest.mark.parametrize(
    "text",
    ["[[token]]", '[[token]]\nname = "a"\nsha256 = "x"', "not toml", rows(a="", b="may = ['root']"),
     rows(a="") + rows(a="")],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    """If the token file is unusable, the error names the setting, the file, and the command that
    makes a valid one."""
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"--tokens is .*cannot be used.*apportion token"):
        TokenFile(path)


async def test_limits_are_of_a_person_from_the_first_request() -> None:
    """The gateway applies the rate limits of a logged-in user to the user, not to the address."""
    gate = Gate(Remembered(Register()), Cursors(), ENDPOINTS)
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request[CLIENT])
        return web.Response()

    server = HttpServer(
        Address("127.0.0.1", 0), metrics=Metrics(), not_ready=list, client=gate.client,
        guard=gate.guard, routes=[ME.route(handle)],
    )  # fmt: skip
    async with listening(server) as address, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(
                f"http://{address}{PREFIX}/{ME.path}", headers={"Authorization": "Bearer t"}
            ) as answer:
                assert answer.status == 200
    assert seen == ["mei", "mei"]


@pytest.mark.parametrize("token", ["", "m\xe9i", "t\udcff"])
async def test_what_cannot_be_a_token_is_nobodys_and_no_login_is_asked(token: str) -> None:
    """If a request's token is malformed, the gateway answers 401 without looking the token up."""
    register = Register()
    with pytest.raises(RequestRefused) as refused:
        await Gate(Remembered(register), Cursors(), ENDPOINTS).known(token)
    assert (refused.value.status, register.asked) == (401, 0)


async def test_made_up_tokens_do_not_push_out_who_is_known() -> None:
    """Many invalid tokens do not push known people out of the gateway's cache."""
    register = Register()
    login = Remembered(register, now=lambda: 0.0)
    await login.person("t")
    for number in range(KEPT_MAX + 1):
        await login.person(f"made-up-{number}")
    register.asked = 0
    assert await login.person("t") == Person("mei")
    assert register.asked == 0
