"""If a pod is blocked by a limit, the pages name that limit. They do not count nodes, because the
scheduler did not evaluate any."""

import re
from urllib.parse import quote

from playwright.sync_api import Browser, Locator, Page, expect

from tests.integration.console.test_questions import NEVER
from tests.support.browser.audit import offences
from tests.support.browser.chromium import opened, visit
from tests.support.standalone import Standalone

LIMITED = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: shut}
spec: {capability: {volcano.sh/vgpu-number: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: kept-out, annotations: {volcano.sh/queue-name: shut}}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 1000}}}
"""
SAID = "its queue shut caps volcano.sh/vgpu-number at 1, but the pod needs 2"


def heading(page: Page, words: str) -> Locator:
    """Return the heading with this text, ignoring any smaller text after it."""
    return page.get_by_role("heading", name=words)


def test_a_limit_is_named_and_no_node_is_counted(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a queue's limit blocks a pod, the console names the limit and counts no nodes."""
    cluster.run("submit", "--wait", "-f", "-", stdin=LIMITED.encode())
    with opened(browser, base) as page:
        visit(page, "#/pod/default/kept-out")
        expect(page.locator("h1")).to_have_text(
            re.compile(rf"^Pending for [^:]+: {re.escape(SAID)}\.$")
        )
        expect(page.locator(".answer")).to_contain_text("queue shut")
        expect(page.locator(".tl-b > b").first).to_have_css("text-transform", "none")
        expect(heading(page, "Why it is pending and what helps")).to_have_count(1)
        expect(page.locator(".stack .causes > li")).to_contain_text(SAID)
        expect(page.locator("#main")).not_to_contain_text("0 nodes")
        assert offences(page) == []
        visit(page, "#/waiting?pod=default/kept-out")
        line = page.locator(".line", has_text=SAID)
        expect(line.get_by_role("heading", name="Why they are pending")).to_have_count(1)
        expect(line.locator(".causes b")).to_have_count(0)
        expect(line.locator("h2")).to_contain_text("queue shut")
        expect(page.locator(".answer")).to_contain_text("ordered by queue share, priority, age")
        visit(page, "#/whatif?pod=default/kept-out")
        expect(heading(page, "Why it is pending a limit applies")).to_have_count(1)
        visit(page, "#/whatif?pod=default/kept-out&add=1x4xT4")
        expect(page.locator("#main")).not_to_contain_text("0 nodes")
    assert cluster.run("delete", "kept-out").returncode == 0


GANG = """\
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: half}
spec: {minMember: 3}
---
apiVersion: v1
kind: Pod
metadata: {name: half-0, annotations: {scheduling.k8s.io/group-name: half}}
spec:
  schedulerName: volcano
  containers:
  - {name: main, image: x, resources: {limits: {volcano.sh/vgpu-number: 1}}}
"""


def test_the_headline_says_how_much_of_a_gang_is_missing(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """For an incomplete gang, the headline has the same counts of pods as `apportion why`."""
    cluster.run("submit", "--wait", "-f", "-", stdin=GANG.encode())
    said = "gang needs 3 pods to start, but has 1"
    assert said in cluster.json("why", "half-0")["sentence"]
    with opened(browser, base) as page:
        visit(page, "#/pod/default/half-0")
        expect(page.locator("h1")).to_have_text(re.compile(rf"^Pending for [^:]+: its {said}\.$"))
        visit(page, "#/waiting")
        line = page.locator(".line", has_text="half-0")
        expect(line.locator(".line-h")).to_contain_text("Gang default/half has 1 of 3")
        expect(line.locator(".causes")).to_contain_text(said)
        assert offences(page) == []
    assert cluster.run("delete", "half-0").returncode == 0


def test_the_headline_of_a_gang_that_nobody_declared(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """Before the first decision, the headline of a pod in an undeclared gang names the missing
    PodGroup."""
    alone = GANG.partition("---\n")[2].replace("half", "lone")
    cluster.run("submit", "-f", "-", stdin=alone.encode())
    with opened(browser, base) as page:
        visit(page, "#/pod/default/lone-0")
        expect(page.locator("h1")).to_have_text(
            re.compile(
                r"^Pending for [\d. a-z]+, waiting for a decision: number \d.*"
                r"; its gang default/lone has no PodGroup yet\.$"
            )
        )
        expect(page.locator("h1")).not_to_contain_text("(gang default/lone)")
    cluster.json("delete", "lone-0")


DISPLAYED = "each => each.map(row => getComputedStyle(row).display)"
LINES = "each => each.map(name => name.getClientRects().length)"
LARGE = GANG.replace("half", "large").replace("minMember: 3", "minMember: 200")


def test_of_a_gang_that_is_too_large_its_line_says_that_first(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a gang is larger than the fleet, its row on the queue page says so first. The row counts
    all pods of the gang."""
    declared, _, member = LARGE.partition("---\n")
    members = [member.replace("large-0", f"large-{number}") for number in range(200)]
    cluster.run("submit", "--wait", "-f", "-", stdin="---\n".join([declared, *members]).encode())
    with opened(browser, base) as page:
        visit(page, "#/waiting?pod=default/large-0")
        line = page.locator(".line", has_text="large-0")
        expect(line.locator(".why")).to_contain_text(
            re.compile("Its gang needs to place 200 pods together, but only [0-9]+")
        )
        expect(line.locator(".why")).to_contain_text("Gang default/large has 200 of 200")
        rows = line.locator("tbody tr").evaluate_all(DISPLAYED)
        assert set(rows) == {"table-row"}, "the last, which counts the others, as well"
        visit(page, f"#/whatif?manifest={quote(NEVER)}")
        would = page.locator("section", has=page.get_by_text(re.compile("^Pending")))
        expect(would).to_contain_text("default/large-0 and 199 more")
        for width in range(360, 420, 4):  # somewhere a name would lie across the end of a line
            page.set_viewport_size({"width": width, "height": 800})
            assert set(would.locator("a").evaluate_all(LINES)) == {1}
        assert offences(page) == []
    cluster.run("delete", "-f", "-", stdin="---\n".join([declared, *members]).encode())


GATED = """\
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec:
  schedulerName: apportion
  schedulingGates: [{name: example.com/hold}]
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}
"""


def test_a_pod_with_gates_waits_for_these_and_stands_in_no_line(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """A pod with scheduling gates is shown as pending because of them, without a position in the
    queue and without a suggested fix."""
    cluster.run("submit", "-f", "-", stdin=GATED.encode())
    with opened(browser, base) as page:
        visit(page, "#/pod/default/gated")
        expect(page.locator("h1")).to_have_text(
            re.compile(
                r"^Pending for [\d. a-z]+ until its scheduling gates are removed: "
                r"example.com/hold\.$"
            )
        )
        expect(page.locator("#main")).not_to_contain_text(
            re.compile(r"not evaluated|number \d| of \d+ · ")
        )
        expect(heading(page, "Why it is pending has scheduling gates")).to_have_count(1)
        expect(page.locator("a", has_text="Try a change")).to_have_count(0)
        assert offences(page) == []
    cluster.json("delete", "gated")


QUOTA = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: tight}
spec: {hard: {limits.nvidia.com/gpumem: MOST}}
"""
HOLDER = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: tight}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}}
"""


def test_who_would_be_beyond_a_quota_is_told_that(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """The What if page reports that a displaced pod would be blocked by its quota."""
    cluster.run("submit", "-f", "-", stdin=QUOTA.replace("MOST", "9000").encode())
    for name in ("one", "two"):
        cluster.json("submit", "--wait", "-f", "-", stdin=HOLDER.replace("NAME", name).encode())
    cluster.run("submit", "-f", "-", stdin=QUOTA.replace("MOST", "4000").encode())
    pods = cluster.json("get", "pods", "--namespace", "tight")["items"]
    with opened(browser, base) as page:
        lost = {share["device"] for pod in pods for share in pod["shares"]}
        visit(page, f"#/whatif?lose={','.join(sorted(lost))}")
        rows = page.locator("section", has_text="Displaced pods").locator("tr", has_text="tight/")
        expect(rows).to_have_count(2)
        expect(rows.last).to_contain_text("pending: its ResourceQuota gpus is short of ")
        assert offences(page) == []
    cluster.json("delete", "tight/one", "tight/two")
    cluster.run("delete", "-f", "-", stdin=QUOTA.encode())


ALL_CARDS = """\
apiVersion: v1
kind: Pod
metadata: {name: all-cards}
spec:
  schedulerName: apportion
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu: 8}}}
"""


def test_what_was_taken_off_offer_since_is_said_below_the_headline(
    browser: Browser, base: str, cluster: Standalone
) -> None:
    """If a node is cordoned after the scheduler refused a pod, the pod's page names the cordon
    below the headline. The cordon is not among the causes of the refusal."""
    cluster.run("submit", "--wait", "-f", "-", stdin=ALL_CARDS.encode())
    near = cluster.json("why", "all-cards")["refused"]["nearest"][0]["node"]
    cluster.json("cordon", near, "--reason", "fan", "--by", "ann")
    with opened(browser, base) as page:
        visit(page, "#/pod/default/all-cards")
        expect(page.locator(".note.warn")).to_contain_text(f"Since then {near} is cordoned: fan")
        assert offences(page) == []
    cluster.json("uncordon", near, "--by", "ann")
    cluster.json("delete", "all-cards")
