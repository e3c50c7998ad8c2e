"""A gateway with a login authenticates its users. It hides other namespaces from a tenant, and
limits what each user may do."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apportion.core.answers.visibility import OF_OTHERS, OTHERS
from apportion.core.audit import Auditor, Violation
from apportion.gateway.api.endpoint import Audience
from apportion.gateway.main import ENDPOINTS
from apportion.runtime.jetstream.reports import history
from apportion_schemas import (
    DeviceCordoned,
    NodeCordoned,
    NodeCordonLifted,
    PodPlaced,
    Score,
    decode,
)
from tests.support.facts import Facts
from tests.support.fleet import rack
from tests.support.nats import Bus
from tests.support.pods import ask, pod, share
from tests.support.polling import until
from tests.support.processes import ServiceProcess
from tests.support.tokens import digest_of, people

NAMES = {
    "namespace": "ml", "name": "mine", "node": "n1", "device": "n1-g0", "revision": "1",
}  # fmt: skip
"""Values for the parameters of a path."""
QUERIES = {"who": "?node=n1&since=1", "diff": "?from=2", "moment": "?at=2"}
"""Parameters without which there is no answer."""
ELSEWHERE = {"events", "report/cost"}
"""A stream, which has a test of its own, and a report that needs a file of prices."""


def reads() -> Iterator[str]:
    """Yield the address of every read that a tenant may make, for now and for the past."""
    for endpoint in ENDPOINTS:
        if endpoint.audience is not Audience.TENANTS or endpoint.method != "GET":
            continue
        if endpoint.path not in ELSEWHERE:
            path = f"{endpoint.path.format(**NAMES)}{QUERIES.get(endpoint.path, '')}"
            yield path
            if "at" in endpoint.query.__struct_fields__ and endpoint.path != "moment":
                yield f"{path}{'&' if '?' in path else '?'}at=6"
    yield "history/pods/theirs"


READS = tuple(reads())
LABEL = "secret-app"
SECRETS = ("theirs", "patient", "ops/", "2024/", LABEL)
"""Words in pods of another namespace that would identify it."""


class Asked:
    """Sends requests to a gateway with a login, as different users."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, who: str, path: str, **headers: str) -> tuple[int, str]:
        """Return the status and text of a GET request; an empty `who` sends no token."""
        sent = {"Authorization": f"Bearer {who}"} | headers if who else headers
        async with self.session.get(f"{self.url}/{path}", headers=sent) as answer:
            return answer.status, await answer.text()

    async def ok(self, who: str, path: str) -> Any:
        """Return the answer to a GET request that must succeed."""
        status, text = await self.get(who, path)
        assert status == 200, (path, text)
        return json.loads(text)

    async def post(self, who: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        sent = {"Authorization": f"Bearer {who}"} | headers if who else headers
        url = f"{self.url}/{path}"
        async with self.session.post(url, json=body, headers=sent) as answer:
            return answer.status, json.loads(await answer.text())


@pytest.fixture
async def facts(bus: Bus) -> Facts:
    """Provide a ledger with two pods of different namespaces on one GPU, and with two pending pods.

    A cordon's reason names pods of other namespaces."""
    opened = Facts(bus)
    await opened.open()
    await opened.write(rack("n1", 2))
    reason = "kept for ops/theirs and 2024/77"
    await opened.write(DeviceCordoned(device="n1-g1", by="olga", reason=reason))
    await opened.write(pod("u4", ask(), namespace="2024", name="77"))
    others = {"namespace": "ops", "labels": {"app": LABEL}}
    await opened.write(pod("u1", ask(), namespace="ml", name="mine"))
    await opened.write(pod("u2", ask(), name="theirs", **others))
    await opened.write(pod("u3", ask(), name="patient", **others))
    await place(opened, "u1", "ml", "mine")
    await place(opened, "u2", "ops", "theirs")
    return opened


async def place(facts: Facts, uid: str, namespace: str, name: str) -> None:
    """Place the pod with a share of the first GPU."""
    held = (share("n1-g0", 1_000),)
    score = Score(node="n1", total=1.0)
    previous = facts._chain.get("n1", "")
    await facts.write(
        PodPlaced(pod=uid, namespace=namespace, name=name, attempt=1, node="n1", shares=held,
                  score=score, previous=previous)
    )  # fmt: skip


@pytest.fixture
async def asked(bus: Bus, facts: Facts, tmp_path: Path) -> AsyncIterator[Asked]:
    """Provide a gateway with three tokens, each equal to its user's name."""
    del facts  # is there first
    options = ("--listen", "127.0.0.1:0", "--tokens", str(people(tmp_path)))
    async with ServiceProcess("gateway", bus.server.url_for("gateway"), *options) as process:
        await process.ready()
        line = await process.logged("answering")
        async with aiohttp.ClientSession() as session:
            yield Asked(str(line["url"]).removesuffix("/"), session)


async def test_nobody_is_answered_who_is_not_known(asked: Asked) -> None:
    """Without a valid token the gateway serves only the login page and the health probes."""
    base = asked.url.removesuffix("/api/v1")
    for who in ("", "wrong"):
        for path in (*READS, "events", "doctor", "configuration", "me", "unheard"):
            status, text = await asked.get(who, path)
            assert status == 401, path
            assert json.loads(text)["fix"]
        async with asked.session.get(f"{base}/metrics") as answer:
            assert answer.status == 401
    for path in ("/", "/console/js/app.js", "/healthz", "/readyz"):
        async with asked.session.get(base + path) as answer:
            assert answer.status == 200, path


async def test_a_tenant_learns_of_others_that_they_are_there_and_no_more(asked: Asked) -> None:
    """No answer to a tenant, about now or about the past, contains a name, label or other detail of
    another namespace."""
    for path in READS:
        status, text = await asked.get("mei", path)
        assert status == 200, (path, text)
        assert not [word for word in SECRETS if word in text], (path, text)
        everything = await asked.get("olga", path)
        assert everything[0] == 200, (path, everything)
    whole = " ".join([(await asked.get("olga", path))[1] for path in READS])
    assert all(word in whole for word in SECRETS if word != LABEL), "it is there to be hidden"


async def test_a_tenant_searches_the_log_in_what_he_sees_of_it(asked: Asked) -> None:
    """A tenant's log search matches only text that the tenant may see. The number of rows and the
    page boundaries therefore reveal nothing else."""
    for search in ("text=theirs", "text=THEIRS", "subject=workload.u2.*", "subject=workload.*.*"):
        found = await asked.ok("mei", f"log?limit=1&{search}")
        nothing = await asked.ok("mei", "log?limit=1&text=no-such-word")
        if "*.*" not in search:
            assert (found["items"], found["continue"]) == ([], nothing["continue"]), search
    [mine] = (await asked.ok("mei", "log?limit=1&text=ml/mine"))["items"]
    assert "ml/mine" in mine["sentence"]
    assert len((await asked.ok("olga", "log?text=ops/theirs"))["items"]) > 0
    assert (await asked.get("mei", f"log?text={'x' * 300}"))[0] == 400


async def test_a_tenant_sees_his_own_in_full_and_how_much_others_hold(asked: Asked) -> None:
    """A tenant sees its own pods in full, and only how much of each GPU other pods use."""
    pods = (await asked.ok("mei", "pods"))["items"]
    assert sorted((pod["namespace"], pod["name"]) for pod in pods) == [
        *[(OTHERS, "-")] * 3, ("ml", "mine"),
    ]  # fmt: skip
    held = [each for pod in pods if pod["namespace"] == OTHERS for each in pod["shares"]]
    assert [each["memory_mib"] > 0 for each in held] == [True]
    [card, _] = (await asked.ok("mei", "devices"))["items"]
    assert [(each["namespace"], each["pod"]) for each in card["holders"]] == [
        ("ml", "mine"), (OTHERS, "-"),
    ]  # fmt: skip
    why = await asked.ok("mei", "pods/ml/mine/why")
    assert why["sentence"].startswith("ml/mine ")
    assert why["placed"]["node"] == "n1"
    rows = (await asked.ok("mei", "log?limit=10"))["items"]
    said = [row["sentence"] for row in rows]
    assert OF_OTHERS in said
    assert any(text.startswith("ml/mine placed") for text in said)
    assert any("n1 reports" in text for text in said)


@pytest.mark.parametrize(
    "path",
    ["pods/ops/theirs", "pods/ops/theirs/why", "history/pods/ops/theirs", "pods?namespace=ops",
     "configuration", "doctor", "report/usage?format=csv", "report/usage?by=user", "unheard"],
)  # fmt: skip
async def test_what_cannot_be_redacted_is_refused(asked: Asked, path: str) -> None:
    """The gateway refuses a request whose answer cannot be redacted, and names the missing right
    and how to get it."""
    status, text = await asked.get("mei", path)
    error = json.loads(text)
    assert status == 403, text
    assert error["error"].startswith("mei may not ")
    assert "apportion.dev" in error["fix"]


async def test_one_event_is_shown_as_it_stands_where_it_is_of_nobody_else(asked: Asked) -> None:
    """A tenant sees the full event behind a log entry only if the event concerns no other
    namespace."""
    rows = (await asked.ok("olga", "log?limit=50"))["items"]
    for row in rows:
        entry = await asked.ok("mei", f"log/{row['revision']}")
        others = {"ops", "2024"} & set(row["namespaces"])
        assert (entry["event"] is None) == bool(others), row
        assert not [word for word in SECRETS if word in json.dumps(entry)], entry


async def test_events_of_others_pass_as_their_revisions(asked: Asked, facts: Facts) -> None:
    """In a tenant's event stream, hidden events appear as bare revisions, so the client can resume
    without gaps."""
    headers = {"Authorization": "Bearer mei"}
    async with asked.session.get(f"{asked.url}/events?from=1", headers=headers) as stream:
        text = ""
        while f"id: {facts.revision}\n" not in text:
            text += (await stream.content.readany()).decode()
    ids = [line for line in text.splitlines() if line.startswith("id: ")]
    assert ids == [f"id: {number}" for number in range(1, facts.revision + 1)]
    assert "event: hidden" in text
    assert "mine" in text
    assert not [word for word in SECRETS if word in text]


async def test_a_plan_says_whether_it_fits_and_not_beside_whom(asked: Asked) -> None:
    """A tenant's plan reports whether its pods fit, but not which pods would run next to them."""
    manifest = """
apiVersion: v1
kind: Pod
metadata: {name: new, namespace: ml}
spec:
  schedulerName: apportion
  containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpumem: 1000}}}]
"""
    status, plan = await asked.post("mei", "plan", {"manifest": manifest})
    assert (status, plan["pods"][0]["outcome"]) == (200, "fits")
    assert not [word for word in SECRETS if word in json.dumps(plan)]
    lines = {"Accept": "application/x-ndjson"}
    status, line = await asked.post("mei", "plan", {"manifest": manifest}, **lines)
    assert line["answer"]["pods"][0]["outcome"] == "fits"


@pytest.mark.parametrize("name", ["theirs", "nobodys"])
async def test_a_plan_is_no_way_to_find_out_what_others_have(asked: Asked, name: str) -> None:
    """A plan about another namespace gets the same refusal whether or not the named pod exists."""
    manifest = f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: ops}}
spec: {{schedulerName: apportion, containers: [{{name: c, image: x}}]}}
"""
    status, refused = await asked.post("mei", "plan", {"manifest": manifest})
    assert status == 403
    assert refused["error"].startswith("mei may not ")
    assert refused["error"].endswith("namespace ops")
    status, plan = await asked.post("olga", "plan", {"manifest": manifest})
    assert (status, plan["pods"][0]["outcome"] == "unchanged") == (200, name == "theirs")


async def test_metrics_are_for_who_scrapes(asked: Asked) -> None:
    """A user with the right to scrape can read /metrics. That right does not reveal log entries of
    other namespaces, which stay redacted."""
    base = asked.url.removesuffix("/api/v1")
    for who, status in (("prometheus", 200), ("mei", 403), ("olga", 200)):
        headers = {"Authorization": f"Bearer {who}"}
        async with asked.session.get(f"{base}/metrics", headers=headers) as answer:
            assert answer.status == status
    [newest, *_] = json.loads((await asked.get("prometheus", "log"))[1])["items"]
    assert newest["sentence"] == OF_OTHERS or newest["type"] == "NodeReported"


async def test_who_cordons_is_who_logged_in(asked: Asked, facts: Facts, bus: Bus) -> None:
    """A cordon is recorded under the name of the user who logged in. Users lift only their own
    cordons."""
    status, done = await asked.post("olga", "nodes/n1/cordon", {"reason": "fan"})
    assert (status, done["by"], done["event"]) == (200, "olga", "NodeCordoned")
    assert (await asked.post("mei", "nodes/n1/cordon", {"reason": "mine"}))[0] == 403
    assert (await asked.post("olga", "nodes/n9/cordon", {"reason": "fan"}))[0] == 404
    assert (await asked.post("olga", "nodes/n%2F9/cordon", {"reason": "fan"}))[0] == 404
    assert (await asked.post("olga", "nodes/n1/cordon", {"reason": " "}))[0] == 400
    assert (await asked.post("olga", "nodes/n1/cordon", {"reason": "x", "by": "root"}))[0] == 400
    ledger = await bus.connect("operator")
    [record] = [each.record for each in await history(ledger, done["revision"] - 1, 1)]
    said = decode(record.payload, subject=record.subject).data
    assert said == NodeCordoned(node="n1", by="olga", reason="fan")
    await facts.write(NodeCordoned(node="n1", by="ann", reason="memory"))

    async def both() -> bool:
        cordons = (await asked.ok("olga", "nodes/n1"))["node"]["cordons"]
        return len(cordons) == 2

    await until(both, "both reasons")
    status, lifted = await asked.post("olga", "nodes/n1/uncordon", {})
    assert (status, lifted["event"]) == (200, NodeCordonLifted.__name__)

    async def one() -> bool:
        cordons = (await asked.ok("olga", "nodes/n1"))["node"]["cordons"]
        return [each["by"] for each in cordons] == ["ann"]

    await until(one, "the other's reason alone")
    assert (await asked.post("olga", "nodes/n1/uncordon", {}))[0] == 404
    auditor, found = Auditor(), list[Violation]()
    for each in await history(ledger, 0, lifted["revision"]):
        found += auditor.take(each.record.revision, each.record.subject, each.record.payload)
    assert not [each for each in found if "'gateway" in each.text], "it may sign these"


async def test_a_browser_logs_in_with_a_token(asked: Asked) -> None:
    """Scripts and other sites cannot read the session cookie. A page of another site cannot use the
    cookie to cordon a node."""
    status, error = await asked.post("", "login", {"token": "wrong"})
    assert (status, error["field"]) == (401, "Authorization")
    async with asked.session.post(f"{asked.url}/login", json={"token": "olga"}) as answer:
        assert (await answer.json())["name"] == "olga"
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    sent = {"Cookie": cookie.partition(";")[0]}
    assert (await asked.get("", "me", **sent))[0] == 200
    act = ("", "nodes/n1/cordon", {"reason": "fan"})
    assert (await asked.post(*act, **sent, Origin="https://elsewhere"))[0] == 403
    form = {**sent, "Content-Type": "text/plain"}
    async with asked.session.post(
        f"{asked.url}/nodes/n1/cordon", data=b'{"reason": "fan"}', headers=form
    ) as answer:
        assert answer.status == 415
    own = asked.url.removesuffix("/api/v1")
    assert (await asked.post(*act, **sent, Origin=own))[0] == 200


async def test_behind_a_proxy_the_cookie_is_for_https_alone(bus: Bus, tmp_path: Path) -> None:
    """With --public-url the browser sends the session cookie only over HTTPS, and only pages of
    that URL's origin can log in.

    The gateway refuses the option if the URL has no scheme, and if no login is configured."""
    tokens = people(tmp_path)
    public = "https://apportion.example.com"
    url, options = bus.server.url_for("gateway"), ("--tokens", str(tokens), "--public-url")
    async with ServiceProcess(
        "gateway", url, "--listen", "127.0.0.1:0", *options, f"{public}/"
    ) as process:
        await process.ready()
        base = str((await process.logged("answering"))["url"]).removesuffix("/")
        async with aiohttp.ClientSession() as session:
            for origin, status in {public: 200, base.removesuffix("/api/v1"): 403}.items():
                sent = {"Origin": origin, "Host": "apportion.example.com"}
                login = session.post(f"{base}/login", json={"token": "olga"}, headers=sent)
                async with login as answer:
                    assert answer.status == status
                    if status == 200:
                        assert "Secure" in answer.headers["Set-Cookie"]
                    else:
                        assert (await answer.json())["fix"] == f"open {public} instead"
    command = [sys.executable, "-m", "apportion.cli.main", "gateway", "--nats", url, "--public-url"]
    for given, said in (
        (("apportion.example.com", "--tokens", str(tokens)), "write a scheme"),
        ((public,), "a public URL needs a login; add --kubernetes or --tokens FILE"),
    ):
        ended = await asyncio.to_thread(
            subprocess.run, [*command, *given], capture_output=True, text=True
        )
        assert (ended.returncode, "--public-url" in ended.stderr) == (78, True)
        assert said in ended.stderr


async def test_without_a_login_it_listens_on_its_own_machine_alone(bus: Bus) -> None:
    """Without a login the gateway listens only on its own machine unless --open is set. In both
    cases it refuses requests that change anything."""
    url = bus.server.url_for("gateway")
    command = [sys.executable, "-m", "apportion.cli.main", "gateway", "--nats", url]
    ended = await asyncio.to_thread(
        subprocess.run, [*command, "--listen", "0.0.0.0:0"], capture_output=True, text=True
    )
    assert ended.returncode == 78
    assert "add a login" in ended.stderr
    async with ServiceProcess("gateway", url, "--listen", "0.0.0.0:0", "--open") as process:
        await process.ready()
        port = str((await process.logged("answering"))["url"]).split(":")[2].split("/")[0]
        async with aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{port}/api/v1"
            async with session.get(f"{base}/me") as answer:
                assert (await answer.json())["login"] is False
            async with session.post(f"{base}/nodes/n/cordon", json={"reason": "x"}) as answer:
                assert answer.status == 403


async def test_a_site_that_calls_itself_this_machine_reads_nothing(bus: Bus) -> None:
    """A gateway on localhost rejects requests that name another host (DNS rebinding)."""
    url = bus.server.url_for("gateway")
    async with ServiceProcess("gateway", url, "--listen", "127.0.0.1:0") as process:
        await process.ready()
        base = str((await process.logged("answering"))["url"]).removesuffix("/")
        port = base.split(":")[2].split("/")[0]
        hosts = {"elsewhere.example": 403, "127.0.0.1.elsewhere.example": 403, "[bad": 403,
                 "localhost": 200, "127.0.0.1": 200, "[::1]": 200}  # fmt: skip
        async with aiohttp.ClientSession() as session:
            for host, status in hosts.items():
                sent = {"Host": f"{host}:{port}"}
                async with session.get(f"{base}/me", headers=sent) as answer:
                    assert answer.status == status, host


async def test_a_token_that_is_taken_away_is_nobodys(asked: Asked, tmp_path: Path) -> None:
    """The gateway rejects a token that was removed from the token file.

    If the file becomes unreadable, all tokens stay valid."""
    tokens = tmp_path / "tokens.toml"
    before = tokens.read_text()
    tokens.write_text("[[token]]\nname = 7\n")
    assert (await asked.get("olga", "me"))[0] == 200
    tokens.write_text(before.replace(digest_of("mei"), "0" * 64))
    assert (await asked.get("mei", "me"))[0] == 401
    assert (await asked.get("prometheus", "me"))[0] == 200
