// What if: would this fit, what happens without that node, what do more nodes or another policy do?
//
// The gateway decides on a copy of its state, with the scheduler's own engine. Nothing is changed by
// it, so nothing here needs a login; what acts is left to the command line.
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
} from "../words.js";
import { isLive, moment, revisionWords } from "../moment.js";
import { answer, causeList, command, copyFrom, second, segments } from "../parts.js";
import { OUTCOMES, POLICIES } from "../vocabulary.js";
import { Working } from "../working.js";
import { beforeAfter, ROWS, waiters } from "./before_after.js";
import { sentence, sentenceCase, withCode } from "../typography.js";

const CHOICES = [["", "as it is"], ...POLICIES.map(name => [name, name])];
const TYPING_MS = 600;
const NODES_DRAWN = 5;
const NAMES_OFFERED = 20;
const LINES_LOOKED_AT = 20; // for a pod whose name this reader is told
const CARDS_OFFERED = 50;
const NUMBERED = /^([^:]+):(\d+)$/;
const ADDED = /^added-\d+$/; // as a plan calls the nodes that it adds
const LINKED_MOST = 4000; // of an address as it is copied: mail and chat cut longer ones

/** See app.js. The page is there at once; what is known of the queue, and the answer, come when they come. */
export async function open(main, context) {
  const page = new WhatIfPage(main, context);
  context.left.addEventListener("abort", () => page.close());
  page.show();
  await page.run();
  return context.alive() ? page : null;
}

/** A word as a shell takes it for one. */
const shellWord = word =>
  /^[\w@%+=:./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;

/** A field in which something is named, which then stands before it. */
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
    this.names = undefined; // of nodes, once one is asked for
    this.lose = listOf(parameters.get("lose"));
    this.add = listOf(parameters.get("add"));
    this.policy = parameters.get("policy") ?? "";
    this.pod = (parameters.get("pod") ?? "").split("/");
    if (this.pod.length !== 2 || !this.pod.every(Boolean)) this.pod = null;
    this.manifest = parameters.get("manifest") ?? "";
    this.nodeOf = new Map(); // of cards that were offered
    this.asking = new AbortController();
    this.typing = 0; // a timer, from the last key in the manifest on
    this.answered = false;
    this.meeting = this.meet();
  }

  /**
   * The pod that the page is about: the one that is named, else, where nothing is asked, the first
   * in the queue whose name is told to this reader; or none. The gateway tells what it asks for,
   * not its whole manifest, and what fits in its
   * stead would say nothing of it: so nothing is written for it.
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

  /** The answer, or that where the gateway has none. */
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
          <section class="card form" aria-label="The change">
            <h2>Change <small>nothing is appended</small></h2>
            <label for="manifest">A manifest to submit</label
            ><textarea
              id="manifest"
              spellcheck="false"
              rows="8"
              placeholder="YAML, as you would submit it: Pod, Job, Deployment, PodGroup, Queue, ResourceQuota"
              aria-describedby="by-itself"
            ></textarea>
            <p class="faint small" id="by-itself">
              Answered by itself, as soon as you stop typing.
            </p>
            <p class="c-warn small" id="linked" role="status"></p>
            <label for="lose">Nodes or cards to lose</label>
            <div class="tags" id="lost">
              <span class="through" id="lost-tags"></span
              >${named("lose", "node, or GPU-… ↵", "nodes")}
            </div>
            <datalist id="nodes"></datalist> <label for="add">Nodes to add</label>
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
      // what was typed may be under way: whoever stops it leaves the field first
      clearTimeout(this.typing);
      if (this.typing) {
        this.keep();
        this.run();
      }
      this.typing = 0;
      this.reveal();
    });
    const page = this.main.firstElementChild; // what listens to it goes with it
    page.addEventListener("click", event => this.clicked(event));
    page.addEventListener("keydown", event => this.keyed(event));
    $("#lost").addEventListener("focusin", event => this.offer(event));
    $("#lost").addEventListener("input", event => this.offer(event));
  }

  /** What stands above as long as nothing is asked. */
  question() {
    if (this.pod && !this.why)
      return answer(`There is no pod ${this.pod.join("/")} to help.`, [
        "Its address may be mistyped, or it is not there at this moment.",
        link("pods", "All pods"),
      ]);
    return this.pod
      ? answer(
          html`What would help
          ${podLink(...this.pod)}${
            this.first
              ? `, the first in the queue${this.isFirstOfAll ? "" : " that you may see"}`
              : ""
          }?`,
          ["Add nodes, choose a policy, or write another manifest."],
        )
      : answer("What would happen? Write a manifest, or name a node or a card.");
  }

  /** What is known before anything is asked: why the pod waits, or what there is to ask. */
  hint() {
    const { why } = this;
    if (!this.pod) {
      return html`<section class="card">
        <h2>Nothing is asked yet</h2>
        <ul class="hints">
          <li>
            <b>Paste a manifest</b>: does it fit, where, beside whom, and what is ahead of it?
          </li>
          <li>
            <b>Name a node or a card to lose</b>: whose pods are hit, and where would they go?
          </li>
          <li>
            <b>Add nodes</b>, or choose a <b>policy</b>: who of those that wait would have a place?
          </li>
        </ul>
      </section>`;
    }
    if (!why?.refused)
      return why
        ? html`<section class="card"><p>${withCode(sentenceCase(why.sentence))}.</p></section>`
        : "";
    return html`<section class="card">
      <h2>
        Why it waits
        <small
          >${why.refused.nodes ? `none of ${many(why.refused.nodes, "node")} fits` : "a limit keeps it out"},
          and what would unblock it</small
        >
      </h2>
      ${causeList(why.refused.causes, why.refused.nodes)}
    </section>`;
  }

  /** What was named stands before its field, which stays as it is: somebody may be writing there. */
  fields() {
    const tags = (list, id, words) =>
      list.map(
        each =>
          html`<span class="tag ${id}"
            >${each}<button data-${id}-out="${each}" aria-label="${words} ${each}">×</button></span
          >`,
      );
    mount($("#lost-tags"), tags(this.lose, "lose", "Keep"));
    mount($("#added-tags"), tags(this.add, "add", "Without"));
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
    $("#as-of").textContent = `The scheduler's own engine, on a copy of the state${
      isLive() ? "" : ` at ${revisionWords(moment.revision)}`
    }.${this.asks() ? " The same as a command:" : ""}`;
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
   * The nodes whose names have in them what is written: the first few, asked for when one is named.
   * Once it is one node its cards follow: a list of every card there is would be too long to send.
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
            label="${one} card ${card.index}, ${shortModel(card.model)}"
          ></option>`,
      ),
    ]);
  }

  /** The cards of a node that are not lost already; where they are is kept for the picture. */
  async cards(node) {
    const { devices } = await this.or({ devices: [] }, get(`nodes/${path(node)}`));
    for (const { device } of devices) this.nodeOf.set(device, node);
    return devices
      .filter(({ device, present }) => present && !this.lose.includes(device))
      .slice(0, CARDS_OFFERED);
  }

  /**
   * A card as addresses of the console have it, NODE:NUMBER, becomes its id, which is what a plan
   * knows; another word stays.
   */
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

  /** All that is asked is in the address, so that it can be sent; what stands behind # reaches no server. */
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
      manifest && !linked
        ? "Too long for a link: the address of this page leaves the manifest out."
        : "";
  }

  /** The pod of the address, as long as what is asked could help it: a manifest or a loss is about something else. */
  helped() {
    return this.pod && !this.first && !this.manifest.trim() && !this.lose.length
      ? this.pod.join("/")
      : "";
  }

  /** What was just asked is answered where it is seen: on one column the answer is below the form. */
  async reveal() {
    await this.running;
    const result = $("#result");
    if (result && this.asks() && result.getBoundingClientRect().top > innerHeight / 2)
      result.scrollIntoView();
  }

  // ---- asking ----

  /** Ask what stands there now. */
  run() {
    this.running = this.ask();
    return this.running;
  }

  /** Whoever asks anew no longer wants what was asked before. */
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
      this.working.begin("Working out what would happen", { old: this.answered, stop: true });
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

  /** Nothing is asked: what there is to ask, once it is known who waits. */
  async rest(signal) {
    if (!this.met)
      this.working.begin(
        this.pod ? `Looking why ${this.pod.join("/")} waits` : "Looking who waits",
      );
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

  /** Why there is no answer; where the same question may well have one later, it can be asked again. */
  refused(problem) {
    const words = problem.unknown
      ? "This gateway does not answer what if."
      : sentence(problem.message);
    const fix =
      !problem.unknown && problem.fix ? html`<p>${withCode(sentence(problem.fix))}</p>` : "";
    this.unanswered(words, fix, problem.passing);
  }

  /** Nobody waits for the answer any more: the gateway hears it, and works on it no longer. */
  stop() {
    this.asking.abort();
    this.unanswered("Stopped before there was an answer.", "", true);
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
                ${more}${again ? html`<div class="acts"><button class="btn" data-again>Ask again</button></div>` : ""}
              </section>`
            : ""
        }`,
    );
    this.end(words, false);
  }

  /** The nodes that the plan is about, as they are; one that would be added is not there yet. */
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

  /** Whether the name is that of a node which the plan adds: there is no page of it. */
  isAdded(name) {
    return this.add.length > 0 && ADDED.test(name);
  }

  nodeName(name) {
    return this.isAdded(name) ? html`<span class="m">${name}</span>` : nodeName(name);
  }

  /**
   * A node that is lost, or that of a card: of one that was not offered here its story tells. Ids
   * of cards have capitals, names of nodes none.
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

  /** Nothing was tried, so only what is wrong is said: not that nothing would change. */
  unread(problems) {
    const words =
      problems.length === 1
        ? sentence(problems[0])
        : `${many(problems.length, "document")} cannot be used.`;
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
        `answered in ${num(took)} ms on a copy`,
        plan.when,
      ]),
    );
    mount(
      $("#result"),
      html`<p class="again" aria-hidden="true">${said}</p>
        ${plan.problems.length ? unusable(plan.problems) : ""}
        ${
          plan.warnings.length
            ? html`<section class="card">
                <h2>Probably not meant so</h2>
                ${plan.warnings.map(words => html`<p class="note warn"><span>${withCode(words)}</span></p>`)}
              </section>`
            : ""
        }
        ${
          plan.passed_over.length
            ? html`<p class="note"><span>Passed over: ${plan.passed_over.join(", ")}</span></p>`
            : ""
        }
        ${beforeAfter(plan, nodes, this.lose)} ${plan.pods.map(pod => this.planned(pod))}
        ${this.table("Who is hit", plan.moved, "held a place on what is lost")}
        ${this.table("Who is helped", plan.helped, "wait now, and would have a place")}
        ${
          plan.evicted.length
            ? html`<section class="card">
                <h2>
                  Who would go <small>${many(plan.evicted.length, "pod")} of lower priority</small>
                </h2>
                <ol class="mini">
                  ${plan.evicted.slice(0, ROWS).map(
                    pod =>
                      html`<li>
                        <span
                          >${podName(pod.namespace, pod.pod)} leaves ${this.nodeName(pod.node)} for
                          <span class="m">${pod.beneficiary}</span>${
                            pod.to ? html`, and goes to ${this.nodeName(pod.to)}` : ""
                          }${
                            pod.budgets.length
                              ? html` <span class="c-warn"
                                  >(exceeds ${pod.budgets.join(", ")})</span
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

  /** What the change is to the pod that the page is about, which is asked for before all else. */
  helpWords({ helped, waiting }) {
    const [namespace, name] = this.pod;
    const { why } = this;
    const whose = podLink(namespace, name);
    if (!why) return html`There is no pod ${whose} to help.`;
    if (why.placed || why.rejected || why.phase === "ended")
      return html`${whose} does not wait: ${withCode(why.sentence)}.`;
    const pod = helped.find(each => each.namespace === namespace && each.name === name);
    if (pod) return html`${whose} would have a place, on ${this.nodeName(pod.node)}.`;
    const cause = waiting.find(each => each.namespace === namespace && each.pod === name)?.cause;
    return html`${whose} would still wait${cause ? html`: ${withCode(cause)}` : ""}.`;
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
            ? html`Waits already, since ${receipt(pod.pending_since)}.`
            : ""
        }
      </p>
      ${this.scores(best)}
      ${
        pod.beside.length
          ? html`<h3>Beside</h3>
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
                      ? "What an empty fleet lacks"
                      : "Why it can never have a place"
                    : "Why it would wait"
                }
              </h3>
              ${limitBesides(pod.refused)}${causeList(pod.refused.causes, pod.refused.nodes)}`
          : ""
      }
      ${
        pod.ahead
          ? html`<p class="faint">
              ${many(pod.ahead, "pod")} would have their turn before it:
              ${link("waiting", "the lines")}.
            </p>`
          : ""
      }
    </section>`;
  }

  /** The score of each node, with the best one first. */
  scores(best) {
    if (!best.length) return "";
    const most = Math.max(1e-9, ...best.map(row => row.total));
    return html`<div class="runs">
      ${best.map(
        (row, at) =>
          html`<div class="run ${at ? "" : "won"}">
            <span class="m">${this.nodeName(row.node)}</span
            ><span class="stackbar" role="img" aria-label="score ${row.total.toFixed(1)}"
              ><i
                data-s="width:${(Math.max(0, row.total) / most) * 100}%;background:var(--p1)"
              ></i></span
            ><b class="m">${row.total.toFixed(1)}</b
            ><em class="m">${at ? behindWords(best[0].total, row.total) : ""}</em>
          </div>`,
      )}
    </div>`;
  }

  table(words, pods, about) {
    if (!pods.length) return "";
    return html`<section class="card">
      <h2>${words} <small>${many(pods.length, "pod")} that ${about}</small></h2>
      <table class="t tight">
        <thead>
          <tr>
            <th scope="col">Pod</th>
            <th scope="col">From</th>
            <th scope="col">Would go to</th>
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
                <td>${pod.was ? nodeName(pod.was) : html`<span class="faint">waits</span>`}</td>
                <td>
                  ${
                    pod.node
                      ? this.nodeName(pod.node)
                      : html`<span class="c-bad"
                          >${pod.outcome === "never" ? "nowhere" : "waits"}${lackWords(pod)}</span
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
    this.typing = 0; // a field that goes with the page is left, and changes, as well
    this.asking.abort();
    this.working.end("");
  }
}

/** Whether all that was asked could not be read. */
const isUnread = ({ problems, pods, changes }) =>
  problems.length > 0 && !pods.length && !changes.length;

const unusable = problems =>
  html`<section class="card">
    <h2>What cannot be used</h2>
    ${problems.map(words => html`<p class="note bad"><span>${withCode(words)}</span></p>`)}
  </section>`;

const LOOKS = { fits: "allocated", "not-now": "waiting", never: "never", unchanged: "allocated" };

/** What keeps a gang out that no cause says: of a limit one does. */
function limitBesides({ limit, causes }) {
  return limit && !causes.some(cause => cause.is_limit) ? html`<p>${sentenceCase(limit)}.</p>` : "";
}

/** What keeps a pod from a place: the limit or its gang, else what the nearest node lacks. */
function lackWords({ refused }) {
  if (refused?.limit) return `: ${refused.limit}`;
  const near = refused?.nearest?.find(miss => miss.missing);
  return near ? `: ${near.missing} missing` : "";
}

const outcomeWords = outcome => OUTCOMES[outcome] ?? outcome;

function outcomeChip(outcome) {
  return html`<span class="chip p-${LOOKS[outcome] ?? ""}">${outcomeWords(outcome)}</span>`;
}
