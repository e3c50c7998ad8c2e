// One pod: its placement and the reasons for it, or why it is pending and what would help. If there is no such
// pod, the page offers similar names.
import { get, getNow, orNone, orProblem, path, Problem } from "../api.js";
import { gauge, legend, sharesOf, stateOf, STATES, statesOf } from "../cards.js";
import {
  behindWords,
  between,
  byName,
  clock,
  duration,
  instant,
  many,
  num,
  shortId,
  shortModel,
  when,
} from "../format.js";
import { html, ICONS, mount, renew } from "../html.js";
import {
  coresHeld,
  link,
  linked,
  nodeLink,
  phaseChip,
  phaseWord,
  podLink,
  podName,
  podOf,
  quoted,
  receipt,
  startWords,
  wants,
} from "../words.js";
import { mayBeMeant, namespacesOf, nonePage, otherKinds, severalPage } from "../meant.js";
import { isLive, shownTime } from "../moment.js";
import { answer, causeList, clauses, copyFrom, problemNote } from "../parts.js";
import { href, setCanonical } from "../route.js";
import { STORY } from "../vocabulary.js";
import { ListPage, NEWER } from "./list_page.js";
import { ownTimes, sentenceCase, withCode } from "../typography.js";

const LONG_WAIT_S = 60;
const LEAST_S = 0.1; // the shortest pending time to show if the history has one
const ENDED = "ended";
const PART_COLOURS = ["--p1", "--p2", "--p3", "--p4"];
const LOOKS = {
  PodSubmitted: "submitted",
  PodAdopted: "placed",
  PodRefused: "refused",
  PodRejected: "refused",
  PodPlaced: "placed",
  PodBound: "bound",
  SharesAllocated: "allocated",
  PodGone: "ended",
  PlacementVoided: "refused",
  AllocationFailed: "refused",
  BindFailed: "refused",
  PodEvicted: "refused",
  PodResized: "allocated",
  NodeGone: "refused",
  NodeSilent: "refused",
};

/** See app.js. A name without a namespace resolves to the same pod as in `apportion why`. */
export async function open(main, context) {
  const { args } = context;
  if (args.length > 1) return new PodPage(main, context, args).start();
  const [name] = args;
  const spaces = await namespacesOf(name);
  if (!context.alive()) return null;
  if (spaces.length === 1) {
    setCanonical([...spaces, name]);
    return new PodPage(main, context, [...spaces, name]).start();
  }
  const page = spaces.length
    ? severalPage(name, spaces)
    : nonePage(`named ${name}`, name, {
        ...(await mayBeMeant(name)),
        ...(await otherKinds(name)),
      });
  if (context.alive()) mount(main, page);
  return null; // at another moment, the name is resolved again
}

/** The queue of a pod, from the event of its submission. */
const queueOf = event => event?.data?.queue || event?.data?.submitted?.queue || "";

class PodPage extends ListPage {
  constructor(main, context, /** @type {string[]} */ [namespace, ...name]) {
    super(main, context);
    this.namespace = namespace;
    this.name = name.join("/");
  }

  async load() {
    const name = path(this.namespace, this.name);
    const [why, history] = await Promise.all([
      orNone(get(`pods/${name}/why`)),
      orProblem(get(`history/pods/${name}`, { limit: 500 })),
    ]);
    this.why = why;
    this.history = history;
    this.revision = why?.revision ?? 0;
    if (this.isNone()) await this.loadMeant();
    const live = why && !this.hasEnded(); // only live pods have details
    const held = why?.placed?.node;
    const then = this.whenHeld();
    const submitted = why?.history[0]?.revision; // only this event has the queue
    const [detail, entry, node, beside] = await Promise.all([
      live ? orNone(get(`pods/${name}`)) : null,
      submitted ? orProblem(getNow(`log/${submitted}`)) : null,
      held ? orProblem(get(`nodes/${path(held)}`, then)) : null,
      held ? orProblem(get("placements", { node: held, limit: 1000, ...then })) : null,
    ]);
    this.pod = detail?.pod ?? null;
    this.queue = why?.gang?.queue || queueOf(entry?.event);
    this.node = node;
    this.beside = beside;
  }

  /** The request parameter for the moment of its last allocation: just before the end of an ended pod. */
  whenHeld() {
    return this.why && this.hasEnded() ? { at: String(this.why.history.at(-1).revision - 1) } : {};
  }

  /** Load similar names, and a pod of this name that was submitted after the shown moment. */
  async loadMeant() {
    const { namespace, name } = this;
    const story = isLive()
      ? null
      : await orNone(getNow(`history/pods/${path(namespace, name)}`, { limit: 1 }));
    this.meant = {
      ...(await mayBeMeant(name)),
      later: story && { namespace, name, revision: story.items[0].revision },
    };
  }

  isNone() {
    return !this.why && !this.history?.items?.length;
  }

  draw() {
    const { why } = this;
    if (this.isNone()) {
      renew(this.main, nonePage(`${this.namespace}/${this.name}`, this.name, this.meant));
      return;
    }
    const phase = why ? phaseWord(why.phase) : ENDED;
    renew(
      this.main,
      html`<div class="page">
        <p class="crumb">
          ${link("pods", "Pods")} /
          <span class="m">${this.namespace}/<b>${this.name}</b></span>
          ${phaseChip(phase)}${this.pod?.priority ? html` <span class="chip">priority ${this.pod.priority}</span>` : ""}
        </p>
        ${answer(this.sentence(), this.notes())} ${this.besides()}
        <div class="cols story">
          <section class="card">
            <h2>History</h2>
            ${this.story()}
          </section>
          <div class="stack">${this.evidence()}</div>
        </div>
      </div>`,
    );
  }

  // ---- the answer ----

  sentence() {
    const { why } = this;
    if (!why) return `${sentenceCase(this.history.items.at(-1).sentence)}.`;
    const broken = this.hasEnded() ? 0 : why.failed_devices.length;
    if (broken)
      return html`${this.placedLead()} on ${nodeLink(why.placed.node)} ·
        <span class="c-bad">${many(broken, "failed GPU")}</span>`;
    if (why.placed)
      return html`${this.placedLead()} on
      ${nodeLink(why.placed.node)}${this.fittedWords()}${this.waitWords()}`;
    if (why.rejected)
      return html`${this.hasEnded() ? "Ended · was rejected" : "Rejected"}: ${why.rejected.field}
      ${why.rejected.problem}.`;
    if (this.hasEnded()) return this.endedSentence();
    const waited = this.waited();
    const lead = waited === null ? "Pending" : `Pending for ${duration(waited)}`;
    if (why.refused) return html`${lead}: ${this.reason()}.`;
    if (!why.awaits) return html`${lead}.`;
    return html`${lead}${why.gates.length || why.chooser ? " " : ", waiting "}${why.awaits}.`;
  }

  hasEnded() {
    return this.why.phase === ENDED;
  }

  placedLead() {
    const { why } = this;
    if (this.hasEnded())
      return `${this.endedLead()} · ${
        why.history.some(step => step.phase === "allocated") ? "ran" : "was placed"
      }`;
    return why.phase === "allocated" && !why.unready ? "Running" : "Placed";
  }

  fittedWords() {
    const { fitting } = this.why.placed;
    return fitting === 1
      ? " · only node that fit"
      : fitting
        ? ` · best of ${num(fitting)} nodes`
        : " · adopted";
  }

  /** The time and the reason of the end, such as who deleted the pod. */
  endedLead() {
    const { history, end } = this.why;
    const at = instant(history.at(-1)?.time);
    const because = end?.reason;
    return `Ended${at === null ? "" : ` at ${when(at, shownTime())}`}${because ? ` (${because})` : ""}`;
  }

  /** The headline of a pod that ended without a placement. */
  endedSentence() {
    const { why } = this;
    const waited = this.waited();
    return html`${this.endedLead()} · never
    placed${
      waited === null ? "" : ` · pending for ${duration(waited)}`
    }${why.refused ? html`: ${this.reason()}.` : ""}`;
  }

  /** Why the pod is, or was, pending; nodes are links. */
  reason() {
    return linked(this.why.refused.reason_parts);
  }

  /** Seconds from the submission to the placement, the end or the shown moment. */
  waited() {
    const { history, placed } = this.why;
    return between(
      history[0]?.time,
      placed?.time || (this.hasEnded() && history.at(-1)?.time) || shownTime(),
    );
  }

  waitWords() {
    const waited = this.waited();
    if (waited === null) return "";
    // the history shows that it was pending, however briefly
    const looked = this.history?.items?.some(({ type }) => type === "PodRefused");
    const words =
      waited < 2 && !looked
        ? " · placed at once"
        : ` · placed after ${duration(Math.max(LEAST_S, waited))}`;
    const again = this.history?.uids?.length > 1; // the history includes earlier pods of this name
    return again ? `${words}, resubmitted at ${clock(instant(this.why.history[0].time))}` : words;
  }

  /** Notes on a pending pod: pods that are spared, and changes since the last evaluation. */
  besides() {
    const { refused } = this.why ?? {};
    if (!refused || this.hasEnded()) return "";
    const said = [
      refused.spared,
      refused.since_text ? `Since then ${ownTimes(refused.since_text)}` : "",
    ].filter(Boolean);
    return said.map(
      words => html`<p class="note warn">${ICONS.warning}<span>${withCode(words)}.</span></p>`,
    );
  }

  notes() {
    const { pod } = this;
    return [
      pod?.asks.length ? wants(pod.asks) : "",
      link("pods", this.namespace, { q: `${this.namespace}/` }),
      pod?.group ? html`gang ${link("pods", pod.group, { q: pod.group }, "m")}` : "",
      ...Object.entries(this.why?.gang?.domains ?? {}).map(
        ([level, found]) =>
          html`${level} <span class="m">${Object.keys(found).filter(Boolean).join(", ")}</span>`,
      ),
      this.queue ? html`queue <span class="m">${this.queue}</span>` : "",
      NEWER,
    ];
  }

  // ---- history ----

  story() {
    const steps = this.steps();
    const waits = this.why && !this.why.placed && !this.why.rejected && !this.hasEnded();
    return html`<ol class="tl">
      ${steps.map((step, at) => stepRow(step, steps[at + 1]))}${
        waits
          ? html`<li class="open">
              <div class="tl-t"><time>now</time></div>
              <div class="tl-b"><b>Pending</b><span>${this.standing()}</span></div>
            </li>`
          : ""
      }
    </ol>`;
  }

  /** Whether the pod has scheduling gates, and so is not in the queue yet. */
  isGated() {
    return !this.why.refused && !this.why.waiting;
  }

  /** A link to its request in the queue. */
  queueLink(look = "") {
    return link("waiting", "View in queue", { pod: `${this.namespace}/${this.name}` }, look);
  }

  /** Its position in the queue. */
  standing() {
    const { waiting, start } = this.why;
    if (this.isGated()) return "not in the queue yet";
    const starts = start ? startWords(start, shownTime()) : "";
    return html`${
      waiting ? `${num(waiting.position)} of ${num(waiting.pending)} · ` : ""
    }${this.queueLink()}${starts && ` · ${starts}`}`;
  }

  steps() {
    if (this.history?.items) {
      return this.rooms(this.history.items).map(([item, ...others]) => ({
        look: LOOKS[item.type] ?? "submitted",
        title: this.titled(item),
        time: item.time,
        revision: item.revision,
        words: others.length
          ? [item, ...others].map(
              each =>
                html`<span class="clause"
                  >${this.told(each)} ${each === item ? "" : receipt(each.revision)}</span
                >`,
            )
          : this.told(item),
      }));
    }
    return this.why.history.map(step => ({
      look: step.phase,
      title: sentenceCase(phaseWord(step.phase)),
      time: step.time,
      revision: step.revision,
      words: this.stepWords(step.phase),
    }));
  }

  /** The history in groups: consecutive evictions of other pods for this one are one decision. */
  rooms(items) {
    const groups = [];
    for (const item of items) {
      if (groups.length && this.makesRoom(item) && this.makesRoom(groups.at(-1)[0]))
        groups.at(-1).push(item);
      else groups.push([item]);
    }
    return groups;
  }

  /** Whether the event evicts another pod to make room for this one. */
  makesRoom(item) {
    return item.type === "PodEvicted" && !this.isOwn(item);
  }

  /** Whether the event is about the pod of this page. */
  isOwn(item) {
    const pod = podOf(item);
    return pod?.namespace === this.namespace && pod.name === this.name;
  }

  /** The title of an event. */
  titled(item) {
    return this.makesRoom(item) ? "Making room" : (STORY[item.type] ?? item.type);
  }

  /** The sentence of an event, without what its title and the page already say. */
  told(item) {
    const { clauses: listed, own, parts, priority, type } = item;
    const isOwn = this.isOwn(item);
    const lead = isOwn && type === "PodEvicted" ? [`this pod (priority ${priority}) was `] : [];
    const all = parts.length ? quoted(parts) : [item.sentence];
    const [first, ...rest] = [...lead, ...(isOwn ? all.slice(own) : all)];
    const begun = typeof first === "string" ? [sentenceCase(first)] : first ? [first] : [];
    return clauses(linked([...begun, ...rest], ownTimes), listed.map(ownTimes));
  }

  stepWords(phase) {
    const { why, pod } = this;
    if (phase === "submitted") return pod?.dialect ? `${wants(pod.asks)} (${pod.dialect})` : "";
    if (phase === "refused" && why.refused) return this.reason();
    if (phase === "placed" && why.placed?.score.total)
      return html`on ${nodeLink(why.placed.node)}, score
        <b>${why.placed.score.total.toFixed(1)}</b>`;
    if (phase === "bound") return "assigned to the node";
    return phase === "allocated" ? "devices handed out by the agent" : "";
  }

  // ---- evidence ----

  evidence() {
    const { why } = this;
    if (!why) return "";
    if (why.placed) return [this.whyHere(), this.share(), this.failed()];
    if (why.rejected)
      return html`<section class="card">
        <h2>How to fix</h2>
        <p class="lead">
          <span class="m">${why.rejected.field}</span> is ${why.rejected.value}:
          ${why.rejected.problem}.
        </p>
        <p class="lead">${sentenceCase(why.rejected.fix)}.</p>
      </section>`;
    return this.unblock();
  }

  whyHere() {
    const { placed } = this.why;
    const rows = [
      { node: placed.node, total: placed.score.total ?? 0, parts: placed.score.parts ?? {} },
      ...placed.runners_up,
    ];
    const parts = Object.keys(rows[0].parts).sort(byName);
    const most = Math.max(1e-9, ...rows.map(row => row.total));
    const said =
      rows.length > 1
        ? `top ${rows.length} of ${many(placed.fitting, "fitting node")}`
        : placed.fitting === 1
          ? "no other node fit"
          : "";
    if (!placed.nodes)
      return html`<section class="card">
        <h2>Why this node</h2>
        <p>The pod already ran here when it was adopted.</p>
      </section>`;
    return html`<section class="card">
      <h2>Why this node <small>${said}</small></h2>
      <div
        class="funnel"
        role="img"
        aria-label="${num(placed.nodes)} nodes, ${num(placed.fitting)} fit, 1 chosen"
      >
        <span><b>${num(placed.nodes)}</b> ${placed.nodes === 1 ? "node" : "nodes"}</span
        ><span><b>${num(placed.fitting)}</b> fit</span
        ><span class="on"><b>1</b> ${placed.node}</span>
      </div>
      <div class="runs">${rows.map((row, at) => runRow(row, at, { rows, parts, most }))}</div>
      <div class="keyrow">
        ${parts.map(
          (part, at) =>
            html`<span
              ><i class="sw" data-s="background:var(${PART_COLOURS[at % 4]})"></i>${part}</span
            >`,
        )}
      </div>
    </section>`;
  }

  /** Its allocation among the devices of its node; for an ended pod, just before the end. */
  share() {
    const { placed } = this.why;
    const own = new Map();
    for (const { share } of placed.shares)
      own.set(share.device, (own.get(share.device) ?? 0) + share.memory_mib);
    const cards = this.cards();
    const mine = cards.map(({ device }) => device).filter(device => own.has(device.device));
    const model = placed.shares[0]?.model ? ` · ${shortModel(placed.shares[0].model)}` : "";
    const amounts = new Set(
      mine.map(device => `${num(own.get(device.device))} of ${num(device.memory_mib)} MiB`),
    );
    const { share: first, family } = placed.shares[0] ?? {};
    return html`<section class="card">
      <h2>
        ${this.shareHead()}
        <small
          >${
            mine.length > 1 ? `${mine.length} GPUs on ` : ""
          }${placed.node}${model}${this.hasEnded() ? ", before it ended" : ""}</small
        >
      </h2>
      <div class="cards8">${cards.map(card => this.cardBox(card))}</div>
      ${
        cards.length
          ? html`<div class="legend">
              ${legend([...statesOf(cards), ...(cards.some(isOwn) ? [["own", "this pod"]] : [])])}
            </div>`
          : ""
      }
      <div class="kv">
        ${[...amounts].map(
          amount => html`<span>${mine.length > 1 ? "Each GPU" : "Memory"}</span><b>${amount}</b>`,
        )}${first?.cores ? html`<span>Cores</span><b>${coresHeld(first.cores, family, first.device)}</b>` : ""}
        ${cards.length ? html`<span>On this node</span><b>${this.besideWords()}</b>` : ""}
      </div>
    </section>`;
  }

  shareHead() {
    const { shares } = this.why.placed;
    return shares.length ? "Allocation" : "No GPU allocated";
  }

  /** The devices of its node with their shares, its own share first. */
  cards() {
    const phases = new Map(
      (this.beside?.items ?? []).map(item => [`${item.namespace}/${item.name}`, item.phase]),
    );
    return (this.node?.devices ?? []).map(device => ({
      device,
      state: stateOf(device, this.node.node),
      shares: sharesOf(device, phases, holder => this.own(holder)).sort((a, b) => b.own - a.own),
    }));
  }

  besideWords() {
    const { node } = this.why.placed;
    const beside = new Set(
      this.node.devices.flatMap(device =>
        device.holders.map(holder => `${holder.namespace}/${holder.pod}`),
      ),
    );
    beside.delete(`${this.namespace}/${this.name}`);
    return beside.size
      ? link("fleet", `${many(beside.size, "other pod")}`, {
          q: `node:${node}`,
          ...this.whenHeld(),
        })
      : "no other pods";
  }

  own(holder) {
    return holder.namespace === this.namespace && holder.pod === this.name;
  }

  cardBox({ device, state, shares }) {
    const own = isOwn({ shares });
    const address = href("fleet", { card: `${device.node}:${device.index}`, ...this.whenHeld() });
    return html`<a
      class="c8"
      href="${address}"
      aria-label="Device ${device.index}${own ? ", allocated to this pod" : ""}${
        state ? `, ${STATES[state]}` : ""
      }"
      >${gauge(state, shares)}${own ? html`<b>${device.index}</b>` : html`<span>${device.index}</span>`}</a
    >`;
  }

  failed() {
    const { why } = this;
    const ended = this.hasEnded();
    if (
      !why.failed_devices.length &&
      !why.evicted &&
      !why.last_failure &&
      !why.unready &&
      !why.idle
    ) {
      return html`<section class="card">
        <h2>Health</h2>
        <p class="ok-line">${ICONS.ok} ${ended ? "Healthy until the end" : "Healthy"}</p>
      </section>`;
    }
    return html`<section class="card">
      <h2>Health</h2>
      ${why.failed_devices.map(
        failed =>
          html`<p class="note bad">
            ${ICONS.broken}<span
              ><span class="m">${shortId(failed.device)}</span>: ${ownTimes(failed.reason)}</span
            >
          </p>`,
      )}
      ${
        why.unready
          ? html`<p class="note bad">
              ${ICONS.broken}<span
                >${ownTimes(sentenceCase(why.unready))}. The state of the pod
                ${ended ? "was" : "is"} unknown.</span
              >
            </p>`
          : ""
      }
      ${
        why.evicted
          ? html`<p class="note warn">
              ${ICONS.warning}<span
                >${ended ? "Evicted" : "Being evicted"} for
                ${why.evicted.beneficiary_name}${why.evicted_in_vain ? ", which has ended since" : ""}.</span
              >
            </p>`
          : ""
      }
      ${
        why.idle && !why.evicted
          ? html`<p class="note warn">
              ${ICONS.warning}<span
                >${ended ? "Did" : "Has done"} no work for ${duration(why.idle.seconds)}, since
                ${when(why.idle.since)}.${why.idle.evictable && !ended ? " A pending pod may evict it." : ""}</span
              >
            </p>`
          : ""
      }
      ${
        why.last_failure
          ? html`<p class="note warn">
              ${ICONS.warning}<span
                >An earlier placement failed: ${ownTimes(why.last_failure)}</span
              >
            </p>`
          : ""
      }
    </section>`;
  }

  unblock() {
    const { refused } = this.why;
    const causes = refused?.causes ?? [];
    const leaving = this.why.evicts;
    const ended = this.hasEnded();
    const limited = refused ? !refused.nodes : this.isGated(); // the reason is not about nodes
    return html`${
        leaving.length
          ? html`<section class="card">
              <h2>Making room</h2>
              <ol class="mini">
                ${leaving.map(
                  each =>
                    html`<li>
                      <span
                        >${podName(each.namespace, each.name)} leaves ${nodeLink(each.node)}</span
                      >
                    </li>`,
                )}
              </ol>
            </section>`
          : ""
      }
      <section class="card">
        <h2>
          ${limited ? `Why it ${ended ? "was" : "is"} pending` : `Why no node ${ended ? "fit" : "fits"}`}
          <small>${this.unblockWords(limited)}</small>
        </h2>
        ${
          causes.length
            ? html`${this.limitWords()}${causeList(causes, refused.nodes)}`
            : html`<p>${withCode(sentenceCase(this.why.sentence))}.</p>`
        }
        ${
          ended || this.isGated()
            ? ""
            : html`<div class="acts">
                ${link(
                  "whatif",
                  "Try a change",
                  { pod: `${this.namespace}/${this.name}` },
                  "btn pri",
                )}${this.queueLink("btn")}
              </div>`
        }
      </section>
      ${nearest(refused?.nearest ?? [])}
      ${
        this.history instanceof Problem && !this.history.unknown
          ? problemNote(this.history, "pod history")
          : ""
      }`;
  }

  unblockWords(limited) {
    const { refused } = this.why;
    if (!refused)
      return this.hasEnded()
        ? "never evaluated"
        : this.isGated()
          ? "has scheduling gates"
          : "not evaluated yet";
    return `${limited ? "" : `${many(refused.nodes, "node")}, `}and what ${
      this.hasEnded() ? "would have helped" : "helps"
    }`;
  }

  /** The limit or the gang that keeps the pod pending; the causes below it are about nodes. */
  limitWords() {
    const { limit, causes } = this.why.refused;
    return limit && !causes.some(({ words }) => words === limit)
      ? html`<p>${withCode(sentenceCase(limit))}.</p>`
      : "";
  }

  clicked(event) {
    copyFrom(event);
  }
}

const isOwn = ({ shares }) => shares.some(share => share.own);

function stepRow(step, next) {
  const ms = instant(step.time);
  const gap = next ? between(step.time, next.time) : null;
  return html`<li class="p-${step.look}">
    <div class="tl-t">
      <time title="${step.time}">${ms === null ? "" : timeWords(ms)}</time>${receipt(step.revision)}
    </div>
    <div class="tl-b"><b>${step.title}</b><span>${step.words}</span></div>
    ${gap === null ? "" : html`<span class="gap ${gap > LONG_WAIT_S ? "long" : ""}">${duration(gap)}</span>`}
  </li>`;
}

function timeWords(ms) {
  const words = when(ms, shownTime());
  return words.length > 8 ? html`${words.slice(0, 5)}<br />${clock(ms)}` : words;
}

function runRow(row, at, { rows, parts, most }) {
  const said = parts.map(part => `${part} ${(row.parts[part] ?? 0).toFixed(1)}`).join(", ");
  return html`<div class="run ${at ? "" : "won"}">
    <span class="m">${nodeLink(row.node)}</span
    ><span class="stackbar" role="img" aria-label="${said}"
      >${parts.map(
        (part, place) =>
          html`<i
            title="${part} ${(row.parts[part] ?? 0).toFixed(1)}"
            data-s="width:${
              (Math.max(0, row.parts[part] ?? 0) / most) * 100
            }%;background:var(${PART_COLOURS[place % 4]})"
          ></i>`,
      )}</span
    ><b class="m">${row.total.toFixed(1)}</b
    ><em class="m">${at ? behindWords(rows[0].total, row.total) : ""}</em>
  </div>`;
}

/** The nodes that nearly fit: the request, what is free and which pods hold it. Empty columns are omitted. */
function nearest(misses) {
  if (!misses.length) return "";
  const columns = [
    ["Requested", miss => miss.needed_words, "nw"],
    ["Free", miss => miss.available_words, "nw hide-s"],
    [
      "Missing",
      miss => (miss.missing ? html`<span class="nw">${miss.missing}</span>` : miss.words),
      "",
    ],
    ["Used by", holdersOf, ""],
  ]
    .map(([words, of, look]) => ({ words, look, cells: misses.map(of) }))
    .filter(({ cells }) => cells.some(Boolean));
  return html`<section class="card">
    <h2>Closest nodes</h2>
    <table class="t tight">
      <thead>
        <tr>
          <th scope="col">Node</th>
          ${columns.map(({ words, look }) => html`<th scope="col" class="${look}">${words}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${misses.map(
          (miss, at) =>
            html`<tr data-row tabindex="0">
              <td class="node">${nodeLink(miss.node)}</td>
              ${columns.map(({ look, cells }) => html`<td class="${look}">${cells[at]}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}

function holdersOf({ held_by: names, holders }) {
  if (!holders) return "";
  const links = names.map(
    (name, at) =>
      html`${at ? ", " : ""}${name.includes("/") ? podLink(...name.split("/", 2)) : name}`,
  );
  return html`${links}${holders > names.length ? ` and ${num(holders - names.length)} more` : ""}`;
}
