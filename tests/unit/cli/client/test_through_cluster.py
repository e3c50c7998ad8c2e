"""Tests of `kubectl apportion` with a fake API server: the options and namespaces of kubectl, the
credentials that each side gets, and the errors of the API server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from apportion.cli.client import through_cluster
from apportion.cli.client.connection import CLUSTER, GATEWAY_ENV, TOKEN_ENV, Where
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.through_cluster import (
    CONTEXT_ENV,
    SERVICE_ENV,
    Service,
    read_service,
    token_header,
)
from apportion.cli.exits import USAGE, NotLetIn, Unanswered, Unreachable, Wrong
from apportion.cli.main import plugin
from apportion.core.answers.plans import PlanRequest
from apportion.core.answers.reads import ErrorAnswer, Page, PodAnswer, RevisionAnswer

GATEWAY = "/api/v1/namespaces/apportion/services/http:gateway:8470/proxy"


class _Server(BaseHTTPRequestHandler):
    """A fake API server with a gateway behind it. It records its requests."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str | None, str | None]]
    token: str
    refusal: tuple[int, bytes]

    def do_GET(self) -> None:
        authorization = self.headers["Authorization"]
        self.asked.append((self.path, authorization, self.headers["Cookie"]))
        status, body = self.refusal
        if authorization != f"Bearer {self.token}":
            status, body = 401, of_server("Unauthorized")
        elif not status:
            status, body = 200, msgspec.json.encode(RevisionAnswer(revision=7))
            if "/api/v1/pods" in self.path.removeprefix(GATEWAY):
                body = msgspec.json.encode(Page[PodAnswer](revision=7, items=()))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (b"1", b"\n22", b"\n333\n"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def of_server(message: str) -> bytes:
    """Return an error of the API server itself."""
    return json.dumps({"kind": "Status", "apiVersion": "v1", "message": message}).encode()


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a kubeconfig of the fake API server, whose context has the namespace team-a."""
    _Server.asked, _Server.token, _Server.refusal = [], "first", (0, b"")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    path = tmp_path / "config"
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    document = {
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "u", "user": {"token": "first"}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv(GATEWAY_ENV, "http://127.0.0.1:1")  # the plugin replaces it
    for name in (CONTEXT_ENV, SERVICE_ENV, TOKEN_ENV):
        monkeypatch.setenv(name, "")  # so that what a test's options set is undone
    yield path
    end()
    server.shutdown()
    server.server_close()
    thread.join()


def end() -> None:
    """Close the connection of this process to the API server."""
    for cluster in through_cluster.CLUSTERS.values():
        cluster.end()
    through_cluster.CLUSTERS.clear()


def run(*words: str) -> Result:
    """Run `kubectl apportion` with no open connection, as in a new process."""
    end()
    return CliRunner().invoke(plugin(), words)


def paths() -> list[str]:
    """Return the paths of the requests to the gateway."""
    return [path.removeprefix(GATEWAY) for path, _, _ in _Server.asked]


def test_each_side_gets_its_own_credentials(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CLI sends the kubeconfig's token to the API server, and the gateway's own token to the
    gateway, in a cookie."""
    (tmp_path / "token").write_text("aa.bb-cc_dd\n")
    monkeypatch.setenv(TOKEN_ENV, str(tmp_path / "token"))
    assert Gateway(CLUSTER).ask("revision", answer=RevisionAnswer).revision == 7
    assert _Server.asked == [
        (f"{GATEWAY}/api/v1/revision", "Bearer first", "apportion_token=aa.bb-cc_dd")
    ]


@pytest.mark.parametrize("option", ["--as", "--as-group", "--as-uid"])
def test_impersonation_is_refused(kubeconfig: Path, option: str) -> None:
    """The options of kubectl for impersonation are usage errors, and so is `as` in a kubeconfig."""
    for words in ((option, "ada", "get", "pods"), ("get", "pods", option, "ada")):
        result = run(*words)
        assert result.exit_code == USAGE
        assert f"{option}: impersonation is not supported" in result.output
    document = yaml.safe_load(kubeconfig.read_text())
    document["users"][0]["user"]["as"] = "ada"
    kubeconfig.write_text(yaml.safe_dump(document))
    result = run("get", "pods")
    assert result.exit_code == USAGE
    assert "users[].user.as" in result.output
    assert _Server.asked == []


@pytest.mark.parametrize("token", ["a b", 'a"', "a;b=c", "a,b", ""])
def test_a_token_cannot_add_to_the_cookie(token: str) -> None:
    """The CLI refuses an empty token, and a token with a character that could change the cookie."""
    with pytest.raises(Wrong):
        token_header(token)


def test_renewed_credentials_are_used(kubeconfig: Path) -> None:
    """If the API server rejects the credentials, the CLI reads the kubeconfig again and retries
    once. If the kubeconfig has no new credentials, the request fails."""
    gateway = Gateway(CLUSTER)
    gateway.ask("revision", answer=RevisionAnswer)
    _Server.token = "second"
    with pytest.raises(NotLetIn, match="'x'"):
        gateway.ask("revision", answer=RevisionAnswer)
    kubeconfig.write_text(kubeconfig.read_text().replace("first", "second"))
    assert gateway.ask("revision", answer=RevisionAnswer).revision == 7


def test_lines_are_read_as_they_arrive(kubeconfig: Path) -> None:
    """The CLI splits a streamed answer into lines, even if a chunk ends in the middle of a line."""
    lines = Gateway(CLUSTER).post_for_lines("plan", body=PlanRequest())
    assert list(lines) == [b"1\n", b"22\n", b"333\n"]


@pytest.mark.parametrize(
    ("status", "kind", "fix"),
    [
        (403, NotLetIn, "services/proxy"),
        (404, Unreachable, SERVICE_ENV),
        (503, Unanswered, "app=gateway"),
        (500, Unreachable, "500"),
    ],
)
def test_errors_of_the_api_server_have_a_fix(
    kubeconfig: Path, status: int, kind: type[Exception], fix: str
) -> None:
    """If the API server returns an error, the CLI's error has the name of the gateway's Service,
    the API server's message and a fix."""
    _Server.refusal = (status, of_server("said so"))
    with pytest.raises(Unreachable) as error:
        Gateway(CLUSTER, patience_s=0).ask("revision", answer=RevisionAnswer)
    assert type(error.value) is kind
    for part in (fix, "apportion/gateway", "said so"):
        assert part in error.value.message


def test_errors_of_the_gateway_stay_its_own(kubeconfig: Path) -> None:
    """If the gateway returns an error through the API server, the CLI reports the gateway's error
    and fix, as without Kubernetes."""
    _Server.refusal = (401, msgspec.json.encode(ErrorAnswer(error="no", field="x", fix="do y")))
    with pytest.raises(NotLetIn, match="no; do y"):
        Gateway(CLUSTER).ask("revision", answer=RevisionAnswer)


@pytest.mark.parametrize(
    ("words", "namespace"),
    [
        (["get", "pods"], "team-a"),
        (["get", "pods", "-n", "other"], "other"),
        (["-n", "other", "get", "pods"], "other"),
        (["get", "pods", "-A"], ""),
        (["-n", "other", "get", "pods", "-A"], ""),
        (["get", "pods", "other/p"], ""),
    ],
)
def test_lists_show_the_namespace_of_the_context(
    kubeconfig: Path, words: list[str], namespace: str
) -> None:
    """By default, a list shows the namespace of the kubeconfig's context. `-n` selects another
    namespace, and `-A` selects all namespaces. A name such as `other/p` already has a namespace."""
    run(*words)
    asked = next(path for path in paths() if "/pods" in path)
    assert f"namespace={namespace}" in asked if namespace else "namespace=" not in asked, asked


def test_a_name_that_may_be_a_node_has_no_default_namespace(kubeconfig: Path) -> None:
    """The context's namespace has no effect on `history NAME`. As without kubectl, the CLI first
    looks for a node of that name."""
    run("history", "n1")
    assert paths()[-1].startswith("/api/v1/history/nodes/n1"), paths()


def test_a_namespace_before_the_verb_is_never_dropped(kubeconfig: Path) -> None:
    """With `-n` before the verb, `history NAME` looks for a pod in that namespace, not for a
    node."""
    run("-n", "team-b", "history", "worker-0")
    assert paths()[-1].startswith("/api/v1/history/pods/team-b/worker-0"), paths()


@pytest.mark.parametrize("before", [True, False])
def test_the_options_of_kubectl_are_taken_anywhere(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """--kubeconfig, --context and --gateway-service may precede the verb or follow it."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    options = ["--kubeconfig", str(kubeconfig), "--context", "x", "--gateway-service", "a/b"]
    verb = ["get", "nodes"]
    run(*(options + verb if before else verb + options))
    assert _Server.asked[0][0].startswith("/api/v1/namespaces/a/services/http:b:8470/proxy/")


def test_an_unknown_context_is_wrong_usage(kubeconfig: Path) -> None:
    """If the kubeconfig lacks the context that the user named, the error lists the contexts of the
    kubeconfig."""
    result = run("get", "nodes", "--context", "y")
    assert (result.exit_code, "--context" in result.stderr, "x" in result.stderr) == (2, True, True)


def test_a_ledger_of_this_machine_is_not_mixed_with_a_cluster(tmp_path: Path) -> None:
    """If the gateway is in a cluster, a verb that connects to the ledger needs the option `--nats`.
    Otherwise it would use the ledger of this machine with another cluster's gateway."""
    with pytest.raises(Unreachable, match="--nats"):
        Where(tmp_path, gateway=CLUSTER).reach()


@pytest.mark.parametrize(
    ("text", "service"),
    [
        ("gpus", Service(name="gpus")),
        ("team/gpus", Service(namespace="team", name="gpus")),
        ("https:gpus:web", Service(scheme="https", name="gpus", port="web")),
        ("team/gpus:80", Service(namespace="team", name="gpus", port="80")),
    ],
)
def test_a_service_is_named_as_in_the_api(text: str, service: Service) -> None:
    """A user may name the gateway's Service with a namespace, a scheme and a port. The chart's
    values are the defaults for all three."""
    assert read_service(text) == service


@pytest.mark.parametrize("text", ["../x", "a/b/c", "ftp:a:b", "a b", "A", "a/"])
def test_a_service_cannot_change_the_path(text: str) -> None:
    """The CLI refuses an invalid name of a Service, because such a name could lead to another path
    of the API."""
    with pytest.raises(Wrong):
        read_service(text)
