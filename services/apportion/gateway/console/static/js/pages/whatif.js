// What if: plans for a manifest, lost nodes or devices, added nodes or another policy.
//
// The gateway computes a plan on a copy of its state, with the engine of the scheduler. A plan changes
// nothing, so it needs no permission beyond reading.
import { all, get, NODES_MOST, path, post, Problem } from "../api.js";
import { behindWords, byName, many, num, shortModel } from "../format.js";
import { $, $$, html, mount } from "../html.js";
import {
  isTold,
  link,
  namespaceDot,
  nodeName,
  nodeOf,
  podLink,
  podName,
  receipt,
  startWords,
} from "../words.js";
import { isLive, moment, revisionWords } from "../moment.js";
import { answer, causeList, command, copyFrom, second, segments } from "../parts.js";
import { OUTCOMES, POLICIES } from "../vocabulary.js";
import { Working } from "../working.js";
import { beforeAfter, ROWS, waiters } from "./before_after.js";
import { sentence, sentenceCase, withCode } from "../typography.js";

const CHOICES = [["", "Current"], ...POLICIES.map(name => [name, name])];
const TYPING_MS = 600;
const NODES_DRAWN = 5;
const NAMES_OFFERED = 20;
const LINES_LOOKED_AT = 20; // to find a pod that the user may see
const CARDS_OFFERED = 50;
const NUMBERED = /^([^:]+):(\d+)$/;
const ADDED = /^added-\d+$/; // the names of added nodes in a plan
const LINKED_MOST = 4000; // of a manifest in the address: mail and chat cut longer links

/** See app.js. The form appears at once; the answer follows. */
export async function open(main, context) {
  const page = new WhatIfPage(main, context);
  context.left.addEventListener("abort", () => page.close());
  page.show();
  await page.run();
  return context.alive() ? page : null;
}

/** An argument quoted for a shell. */
const shellWord = word =>
  /^[\w@%+=:./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;

/** A field for names; Enter turns its text into a tag before the field. */
const named = (id, placeholder, list = "") =>
  html`<input
    id="${id}"
    placeholder="${placeholder}"
    autocomplete="off"
    spellcheck="false"
    ${list ? html` list="${list}"` : ""}
  />`;

const listOf = text =>
  (text ?? "")
    .split(",")
    .map(each => each.trim())
    .filter(Boolean);

class WhatIfPage {
  constructor(main, context) {
    const { parameters } = context;
    this.main = main;
    this.context = context;
    this.names = undefined; // of nodes, once needed
    this.lose = listOf(parameters.get("lose"));
    this.add = listOf(parameters.get("add"));
    this.policy = parameters.get("policy") ?? "";
    this.pod = (parameters.get("pod") ?? "").split("/");
    if (this.pod.length !== 2 || !this.pod.every(Boolean)) this.pod = null;
    this.manifest = parameters.get("manifest") ?? "";
    this.nodeOf = new Map(); // nodes by the ids of offered devices
    this.asking = new AbortController();
    this.typing = 0; // a timer since the last key in the manifest
    this.answered = false;
    this.meeting = this.meet();
  }

  /**
   * Find the pod that the page is about: the one in the address, else, for an empty scenario, the first in the
   * queue that the user may see. The gateway has only its request and not its manifest, so the manifest field
   * stays empty.
   */
  async meet() {
    if (!this.pod && !this.asks()) {
      const { lines } = await this.or({ lines: [] }, get("lines", { limit: LINES_LOOKED_AT }));
      this.first = lines.flatMap(line => line.first).find(pod => isTold(pod.name));
      this.isFirstOfAll = this.first === lines[0]?.first[0];
      if (this.first) this.pod = [this.first.namespace, this.first.name];
    }
    this.why = this.pod ? await this.or(null, get(`pods/${path(...this.pod)}/why`)) : null;
    this.met = true;
  }

  /** The answer, or `that` if the request fails. */
  async or(that, answered) {
    try {
      return await answered;
    } catch (problem) {
      if (problem instanceof Problem) return that;
      throw problem;
    }
  }

  asks() {
    return Boolean(this.manifest.trim() || this.lose.length || this.add.length || this.policy);
  }

  show() {
    mount(
      this.main,
      html`<div class="page">
        <p class="unseen" id="said" role="status"></p>
        <div id="answer"></div>
        <div class="cols wi">
          <section class="card form" aria-label="Scenario">
            <h2>Scenario <small>nothing is saved</small></h2>
            <label for="manifest">Manifest</label
            ><textarea
              id="manifest"
              spellcheck="false"
              rows="8"
              placeholder="YAML to submit: Pod, Job, Deployment, PodGroup, Queue, ResourceQuota"
              aria-describedby="by-itself"
            ></textarea>
            <p class="faint small" id="by-itself">Updates as you type.</p>
            <p class="c-warn small" id="linked" role="status"></p>
            <label for="lose">Lost nodes or devices</label>
            <div class="tags" id="lost">
              <span class="through" id="lost-tags"></span
              >${named("lose", "node or GPU-… ↵", "nodes")}
            </div>
            <datalist id="nodes"></datalist> <label for="add">Added nodes</label>
            <div class="tags">
              <span class="through" id="added-tags"></span>${named("add", "4x8xH100-80GB ↵")}
            </div>
            <span class="inl small" id="policy-label">Policy</span
            >${segments("policy", "Policy", CHOICES, this.policy)}
            <p class="faint small" id="as-of"></p>
            <div id="same"></div>
          </section>
          <div id="result" class="stack"></div>
        </div>
      </div>`,
    );
    this.working = new Working({ head: $("#answer"), body: $("#result"), status: $("#said") });
    $("#manifest").value = this.manifest;
    this.fields();
    $("#manifest").addEventListener("input", event => {
      this.manifest = event.target.value;
      clearTimeout(this.typing);
      this.typing = setTimeout(() => {
        this.typing = 0;
        this.keep();
        this.run();
      }, TYPING_MS);
    });
    $("#manifest").addEventListener("change", () => {
      clearTimeout(this.typing); // a click on Stop leaves the field first
      if (this.typing) {
        this.keep();
        this.run();
      }
      this.typing = 0;
      this.reveal();
    });
    const page = this.main.firstElementChild; // its listeners go with it
    page.addEventListener("click", event => this.clicked(event));
    page.addEventListener("keydown", event => this.keyed(event));
    $("#lost").addEventListener("focusin", event => this.offer(event));
    $("#lost").addEventListener("input", event => this.offer(event));
  }

  /** The headline of an empty scenario. */
  question() {
    if (this.pod && !this.why)
      return answer(`No pod ${this.pod.join("/")}`, [
        "Check the name and the time.",
        link("pods", "All pods"),
      ]);
    return this.pod
      ? answer(
          html`What would help
          ${podLink(...this.pod)}${
            this.first
              ? `, ${this.isFirstOfAll ? "the first in the queue" : "your first in the queue"}`
              : ""
          }?`,
          ["Add nodes, choose a policy or write another manifest."],
        )
      : answer("What would happen? Start with a manifest, a node or a device");
  }

  /** The result of an empty scenario: why the pod is pending, or examples of scenarios. */
  hint() {
    const { why } = this;
    if (!this.pod) {
      return html`<section class="card">
        <h2>Examples</h2>
        <ul class="hints">
          <li>
            <b>Paste a manifest</b>: does it fit, on which node, and which pods are ahead of it?
          </li>
          <li>
            <b>Lose a node or a device</b>: which pods are affected, and where would they move?
          </li>
          <li><b>Add nodes</b> or choose a <b>policy</b>: which pending pods would be placed?</li>
        </ul>
      </section>`;
    }
    if (!why?.refused)
      return why
        ? html`<section class="card"><p>${withCode(sentenceCase(why.sentence))}.</p></section>`
        : "";
    return html`<section class="card">
      <h2>
        Why it is pending
        <small
          >${why.refused.nodes ? `none of ${many(why.refused.nodes, "node")} fits` : "a limit applies"},
          and what helps</small
        >
      </h2>
      ${causeList(why.refused.causes, why.refused.nodes)}
    </section>`;
  }

  /** Render the tags. The fields themselves stay, because the user may be typing. */
  fields() {
    const tags = (list, id, words) =>
      list.map(
        each =>
          html`<span class="tag ${id}"
            >${each}<button data-${id}-out="${each}" aria-label="${words} ${each}">×</button></span
          >`,
      );
    mount($("#lost-tags"), tags(this.lose, "lose", "Remove"));
    mount($("#added-tags"), tags(this.add, "add", "Remove"));
    for (const button of $$("[data-policy]", this.main))
      button.setAttribute("aria-pressed", String(button.dataset.policy === this.policy));
  }

  same() {
    const words = [
      "apportion plan",
      this.manifest.trim() ? "-f FILE" : "",
      ...this.lose.map(each => `--lose ${shellWord(each)}`),
      ...this.add.map(each => `--add ${shellWord(each)}`),
      this.policy ? `--policy ${this.policy}` : "",
    ];
    mount($("#same"), this.asks() ? command(words.filter(Boolean).join(" ")) : "");
    $("#as-of").textContent = `Computed by the scheduler's engine on a copy of the state${
      isLive() ? "" : ` at ${revisionWords(moment.revision)}`
    }.${this.asks() ? " As a command:" : ""}`;
  }

  clicked(event) {
    const { dataset } = event.target.closest("button") ?? {};
    if (!dataset) return;
    if (dataset.loseOut) this.change({ lose: this.lose.filter(each => each !== dataset.loseOut) });
    else if (dataset.addOut) this.change({ add: this.add.filter(each => each !== dataset.addOut) });
    else if ("policy" in dataset) this.change({ policy: dataset.policy });
    else if ("stop" in dataset) this.stop();
    else if ("again" in dataset) this.run();
    else copyFrom(event);
  }

  keyed(event) {
    const { id, value } = event.target;
    if (event.key !== "Enter" || !["lose", "add"].includes(id) || !value.trim()) return;
    event.preventDefault();
    event.target.value = "";
    this.change({ [id]: [...new Set([...this[id], ...listOf(value)])] });
  }

  /**
   * Offer the nodes whose names contain the text. Once that is a single node, offer its devices too; a list of
   * all devices of the fleet would be too long.
   */
  async offer({ target }) {
    if (target.id !== "lose") return;
    const wanted = target.value.trim().toLowerCase();
    this.names ??= this.or({ items: [] }, all("nodes", {}, NODES_MOST));
    const found = (await this.names).items
      .map(({ node }) => node)
      .filter(node => node.toLowerCase().includes(wanted))
      .sort(byName);
    const one =
      found.find(node => node.toLowerCase() === wanted) ?? (found.length === 1 ? found[0] : "");
    const cards = one ? await this.cards(one) : [];
    const list = $("#nodes");
    if (!list || !this.context.alive() || target.value.trim().toLowerCase() !== wanted) return;
    const nodes = found.filter(node => !this.lose.includes(node)).slice(0, NAMES_OFFERED);
    mount(list, [
      nodes.map(node => html`<option value="${node}"></option>`),
      cards.map(
        card =>
          html`<option
            value="${card.device}"
            label="${one} device ${card.index}, ${shortModel(card.model)}"
          ></option>`,
      ),
    ]);
  }

  /** The devices of a node that are not lost already. Remembers their node for the picture. */
  async cards(node) {
    const { devices } = await this.or({ devices: [] }, get(`nodes/${path(node)}`));
    for (const { device } of devices) this.nodeOf.set(device, node);
    return devices
      .filter(({ device, present }) => present && !this.lose.includes(device))
      .slice(0, CARDS_OFFERED);
  }

  /** Replace NODE:INDEX, the form in addresses of the console, by the id of the device, which a plan needs. */
  async meetCards(signal) {
    const lose = await Promise.all(this.lose.map(each => this.idOf(each)));
    if (signal.aborted || String(lose) === String(this.lose)) return;
    this.lose = [...new Set(lose)];
    this.keep();
    this.fields();
    this.same();
  }

  async idOf(word) {
    const [, node, index] = NUMBERED.exec(word) ?? [];
    const card = node && (await this.cards(node)).find(each => each.index === Number(index));
    return card ? card.device : word;
  }

  change(what) {
    Object.assign(this, what);
    this.keep();
    this.fields();
    this.run();
    this.reveal();
  }

  /** Keep the scenario in the address, so that it can be shared. The part after # reaches no server. */
  keep() {
    const { lose, add, policy, manifest } = this;
    const linked = encodeURIComponent(manifest).length > LINKED_MOST ? "" : manifest;
    this.context.setParameters({
      pod: this.helped(),
      lose: lose.join(","),
      add: add.join(","),
      policy,
      manifest: linked.trim() && linked,
    });
    $("#linked").textContent =
      manifest && !linked ? "The manifest is too long for a link; the page address omits it." : "";
  }

  /** The pod of the address; empty if the scenario has a manifest or a loss, and so is not about this pod. */
  helped() {
    return this.pod && !this.first && !this.manifest.trim() && !this.lose.length
      ? this.pod.join("/")
      : "";
  }

  /** Scroll to the result, which is below the form on a narrow screen. */
  async reveal() {
    await this.running;
    const result = $("#result");
    if (result && this.asks() && result.getBoundingClientRect().top > innerHeight / 2)
      result.scrollIntoView();
  }

  // ---- requests ----

  /** Compute the scenario of the form. */
  run() {
    this.running = this.ask();
    return this.running;
  }

  /** Compute the scenario; cancels the previous request. */
  async ask() {
    this.asking.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    this.same();
    const began = performance.now();
    try {
      if (!this.asks()) {
        await this.rest(signal);
        return;
      }
      await this.meetCards(signal);
      if (signal.aborted) return;
      this.working.begin("Computing the plan", { old: this.answered, stop: true });
      const plan = await post(
        "plan",
        { manifest: this.manifest, lose: this.lose, add: this.add, policy: this.policy },
        far => this.working.far(far),
        { signal },
      );
      const nodes = await this.nodes(plan);
      if (signal.aborted) return;
      if (isUnread(plan)) this.unread(plan.problems);
      else this.draw(plan, nodes, performance.now() - began);
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof Problem)) throw problem;
      this.refused(problem);
    }
  }

  /** Show the empty scenario, once the queue is known. */
  async rest(signal) {
    if (!this.met)
      this.working.begin(this.pod ? `Loading ${this.pod.join("/")}` : "Loading the queue");
    await this.meeting;
    if (signal.aborted) return;
    mount($("#answer"), this.question());
    mount($("#result"), this.hint());
    this.end($("#answer h1").textContent, false);
  }

  end(words, answered = true) {
    this.answered = answered;
    this.working.end(words);
  }

  /** Show an error, with a button to retry if that may help. */
  refused(problem) {
    const words = problem.unknown
      ? "This gateway does not support what-if plans."
      : sentence(problem.message);
    const fix =
      !problem.unknown && problem.fix ? html`<p>${withCode(sentence(problem.fix))}</p>` : "";
    this.unanswered(words, fix, problem.passing);
  }

  /** Cancel the request; the gateway stops computing. */
  stop() {
    this.asking.abort();
    this.unanswered("Stopped", "", true);
    $("[data-again]").focus();
  }

  unanswered(words, more, again) {
    mount($("#answer"), answer(words));
    mount(
      $("#result"),
      html`<p class="again" aria-hidden="true">${withCode(words)}</p>
        ${
          more || again
            ? html`<section class="card">
                ${more}${again ? html`<div class="acts"><button class="btn" data-again>Retry</button></div>` : ""}
              </section>`
            : ""
        }`,
    );
    this.end(words, false);
  }

  /** The existing nodes that the plan affects; added nodes do not exist yet. */
  async nodes(plan) {
    const lost = await Promise.all(this.lose.map(name => this.nodeNamed(name)));
    const names = [
      ...new Set([
        ...lost,
        ...plan.moved.map(pod => pod.was),
        ...plan.pods.map(pod => pod.node),
        ...plan.moved.map(pod => pod.node),
        ...plan.helped.map(pod => pod.node),
      ]),
    ].filter(name => isTold(name) && !this.isAdded(name));
    const asked = names.slice(0, NODES_DRAWN).map(async name => {
      const [node, placed] = await Promise.all([
        this.or(null, get(`nodes/${path(name)}`)),
        this.or({ items: [] }, get("placements", { node: name, limit: 1000 })),
      ]);
      return (
        node && {
          ...node,
          phases: new Map(placed.items.map(item => [`${item.namespace}/${item.name}`, item.phase])),
        }
      );
    });
    return (await Promise.all(asked)).filter(Boolean);
  }

  /** Whether the plan adds the node of this name; such a node has no page. */
  isAdded(name) {
    return this.add.length > 0 && ADDED.test(name);
  }

  nodeName(name) {
    return this.isAdded(name) ? html`<span class="m">${name}</span>` : nodeName(name);
  }

  /**
   * The node of a lost name: the node itself, or that of a device. The node of a device that was not offered
   * here comes from its history. Device ids have capital letters, node names have none.
   */
  async nodeNamed(name) {
    if (this.nodeOf.has(name) || name === name.toLowerCase()) return this.nodeOf.get(name) ?? name;
    const { items } = await this.or(
      { items: [] },
      get(`history/devices/${path(name)}`, { limit: 1 }),
    );
    return items.length ? nodeOf(items[0]) : "";
  }

  // ---- the answer ----

  /** Show only the errors, because nothing was computed. */
  unread(problems) {
    const words =
      problems.length === 1
        ? sentence(problems[0])
        : `${many(problems.length, "invalid document")}`;
    mount($("#answer"), answer(words));
    mount(
      $("#result"),
      html`<p class="again" aria-hidden="true">${withCode(words)}</p>
        ${problems.length > 1 ? unusable(problems) : ""}`,
    );
    this.end(words);
  }

  draw(plan, nodes, took) {
    const about = this.helped() ? this.helpWords(plan) : "";
    const said = about || sentence(plan.sentence);
    mount(
      $("#answer"),
      answer(said, [
        about && sentenceCase(plan.sentence),
        `as of ${revisionWords(plan.revision)}`,
        plan.changes.map(change => change.words).join(", "),
        `computed in ${num(took)} ms`,
      ]),
    );
    mount(
      $("#result"),
      html`<p class="again" aria-hidden="true">${said}</p>
        ${plan.problems.length ? unusable(plan.problems) : ""}
        ${
          plan.warnings.length
            ? html`<section class="card">
                <h2>Warnings</h2>
                ${plan.warnings.map(words => html`<p class="note warn"><span>${withCode(words)}</span></p>`)}
              </section>`
            : ""
        }
        ${
          plan.passed_over.length
            ? html`<p class="note"><span>Skipped: ${plan.passed_over.join(", ")}</span></p>`
            : ""
        }
        ${beforeAfter(plan, nodes, this.lose)} ${plan.pods.map(pod => this.planned(pod))}
        ${this.table("Displaced pods", plan.moved)} ${this.table("Newly placed pods", plan.helped)}
        ${
          plan.evicted.length
            ? html`<section class="card">
                <h2>
                  Evicted pods <small>${many(plan.evicted.length, "pod")} of lower priority</small>
                </h2>
                <ol class="mini">
                  ${plan.evicted.slice(0, ROWS).map(
                    pod =>
                      html`<li>
                        <span
                          >${podName(pod.namespace, pod.pod)} on ${this.nodeName(pod.node)}, for
                          <span class="m">${pod.beneficiary}</span>${
                            pod.to ? html`, moves to ${this.nodeName(pod.to)}` : ""
                          }${
                            pod.budgets.length
                              ? html` <span class="c-warn"
                                  >(violates ${pod.budgets.join(", ")})</span
                                >`
                              : ""
                          }</span
                        >
                      </li>`,
                  )}
                </ol>
              </section>`
            : ""
        }
        ${waiters(plan)}`,
    );
    this.end($("#answer h1").textContent);
  }

  /** The headline about the pod of the page: the effect of the plan on it. */
  helpWords({ helped, waiting }) {
    const [namespace, name] = this.pod;
    const { why } = this;
    const whose = podLink(namespace, name);
    if (!why) return html`No pod ${whose}`;
    if (why.placed || why.rejected || why.phase === "ended")
      return html`${whose} is not pending: ${withCode(why.sentence)}.`;
    const pod = helped.find(each => each.namespace === namespace && each.name === name);
    if (pod) return html`${whose} would be placed on ${this.nodeName(pod.node)}`;
    const cause = waiting.find(each => each.namespace === namespace && each.pod === name)?.cause;
    return html`${whose} would stay pending${cause ? html`: ${withCode(cause)}.` : ""}`;
  }

  planned(pod) {
    const runners = pod.placed?.runners_up ?? [];
    const best = pod.placed
      ? [{ node: pod.placed.node, total: pod.placed.score.total ?? 0 }, ...runners]
      : [];
    return html`<section class="card">
      <h2>
        <span class="m">${pod.namespace}/${pod.name}</span>
        ${outcomeChip(pod.outcome)}${
          pod.without && pod.without !== pod.outcome
            ? html` <small>without the change: ${outcomeWords(pod.without)}</small>`
            : ""
        }
      </h2>
      <p>
        ${pod.refused ? "" : withCode(`${sentenceCase(pod.sentence)}.`)}${
          pod.refused && pod.pending_since
            ? html`Already pending since ${receipt(pod.pending_since)}.`
            : ""
        }
      </p>
      ${this.scores(best)}
      ${
        pod.beside.length
          ? html`<h3>Other pods there</h3>
              <ol class="mini">
                ${pod.beside.slice(0, 5).map(
                  each =>
                    html`<li>
                      <span
                        >${podName(each.namespace, each.pod)}
                        <span class="faint">${num(each.memory_mib)} MiB</span></span
                      >
                    </li>`,
                )}
              </ol>`
          : ""
      }
      ${
        pod.refused
          ? html`<h3>
                ${
                  pod.outcome === "never"
                    ? pod.refused.never
                      ? "Why not even an empty fleet fits"
                      : "Why it can never be placed"
                    : "Why it would be pending"
                }
              </h3>
              ${limitBesides(pod.refused)}${causeList(pod.refused.causes, pod.refused.nodes)}`
          : ""
      }
      ${pod.start ? html`<p>${sentenceCase(startWords(pod.start, 0))}</p>` : ""}
      ${
        pod.ahead
          ? html`<p class="faint">
              ${many(pod.ahead, "pod")} ${pod.ahead === 1 ? "is" : "are"} ahead of it ·
              ${link("waiting", "View queue")}
            </p>`
          : ""
      }
    </section>`;
  }

  /** The scores of the nodes, the best first. */
  scores(best) {
    if (!best.length) return "";
    const most = Math.max(1e-9, ...best.map(row => row.total));
    return html`<div class="runs">
      ${best.map(
        (row, at) =>
          html`<div class="run ${at ? "" : "won"}">
            <span class="m">${this.nodeName(row.node)}</span
            ><span class="stackbar" role="img" aria-label="Score ${row.total.toFixed(1)}"
              ><i
                data-s="width:${(Math.max(0, row.total) / most) * 100}%;background:var(--p1)"
              ></i></span
            ><b class="m">${row.total.toFixed(1)}</b
            ><em class="m">${at ? behindWords(best[0].total, row.total) : ""}</em>
          </div>`,
      )}
    </div>`;
  }

  table(words, pods) {
    if (!pods.length) return "";
    return html`<section class="card">
      <h2>${words} <small>${num(pods.length)}</small></h2>
      <table class="t tight">
        <thead>
          <tr>
            <th scope="col">Pod</th>
            <th scope="col">From</th>
            <th scope="col">To</th>
            <th scope="col" class="num hide-s">Score</th>
          </tr>
        </thead>
        <tbody>
          ${pods.slice(0, ROWS).map(
            pod =>
              html`<tr data-row tabindex="0">
                <td class="name">
                  ${namespaceDot(pod.namespace)}${podName(pod.namespace, pod.name)}${second([
                    pod.placed?.score?.total ? `score ${pod.placed.score.total.toFixed(1)}` : "",
                  ])}
                </td>
                <td>${pod.was ? nodeName(pod.was) : html`<span class="faint">pending</span>`}</td>
                <td>
                  ${
                    pod.node
                      ? this.nodeName(pod.node)
                      : html`<span class="c-bad"
                          >${pod.outcome === "never" ? "never" : "pending"}${lackWords(pod)}</span
                        >`
                  }
                </td>
                <td class="num m hide-s">${pod.placed?.score?.total?.toFixed(1) ?? "–"}</td>
              </tr>`,
          )}${
            pods.length > ROWS
              ? html`<tr class="more">
                  <td colspan="4">and ${num(pods.length - ROWS)} more</td>
                </tr>`
              : ""
          }
        </tbody>
      </table>
    </section>`;
  }

  async update(live) {
    if (!live) await this.run();
  }

  close() {
    clearTimeout(this.typing);
    this.typing = 0; // removing a focused field fires `change` as well
    this.asking.abort();
    this.working.end("");
  }
}

/** Whether no document of the scenario was valid. */
const isUnread = ({ problems, pods, changes }) =>
  problems.length > 0 && !pods.length && !changes.length;

const unusable = problems =>
  html`<section class="card">
    <h2>Errors</h2>
    ${problems.map(words => html`<p class="note bad"><span>${withCode(words)}</span></p>`)}
  </section>`;

const LOOKS = { fits: "allocated", "not-now": "pending", never: "never", unchanged: "allocated" };

/** The limit of a gang, unless a cause already names it. */
function limitBesides({ limit, causes }) {
  return limit && !causes.some(cause => cause.is_limit) ? html`<p>${sentenceCase(limit)}.</p>` : "";
}

/** Why a pod is pending, in short: a limit, or what the closest node lacks. */
function lackWords({ refused }) {
  if (refused?.limit) return `: ${refused.limit}`;
  const near = refused?.nearest?.find(miss => miss.missing);
  return near ? `: ${near.missing} missing` : "";
}

const outcomeWords = outcome => OUTCOMES[outcome] ?? outcome;

function outcomeChip(outcome) {
  return html`<span class="chip p-${LOOKS[outcome] ?? ""}">${outcomeWords(outcome)}</span>`;
}
