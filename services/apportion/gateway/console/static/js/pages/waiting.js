// Pending pods: a row for each request, which opens to why no node fits, what would help, and its first pods.
import { get } from "../api.js";
import { meetNamespaces } from "../colours.js";
import { duration, instant, many, num, when } from "../format.js";
import { html, ICONS, renew } from "../html.js";
import { isTold, lineWords, link, namespaceDot, nodeName, podName, since } from "../words.js";
import { shownTime } from "../moment.js";
import { answer, causeList, copyFrom, second } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";
import { axisRow, startAxis, startCell, startNote } from "./starts.js";
import { sentenceCase, withCode } from "../typography.js";

const ASKED = 90;
const ROWS = 6;
const DEFAULT_QUEUE = "default";

/** See app.js. */
export const open = (main, context) => new WaitingPage(main, context).start();

class WaitingPage extends ListPage {
  constructor(main, context) {
    super(main, context);
    this.opened = null; // keys of the open requests, once there are any
  }

  async load() {
    this.lines = await get("lines", { limit: ASKED, start: 1 });
    this.revision = this.lines.revision;
    meetNamespaces(this.lines.lines.flatMap(line => line.first.map(pod => pod.namespace)));
  }

  draw() {
    const { lines: all } = this;
    const since_ms = instant(all.oldest_time);
    const starts = all.lines.map(line => line.start);
    const axis = startAxis(starts, shownTime());
    this.opened ??= new Set(firstOpen(all.lines, this.context.parameters.get("pod")));
    const rows = [axisRow(axis), ...all.lines.map(line => lineCard(line, this.opened, axis))];
    const sentence = all.pods
      ? html`${many(all.pods, "pod")} ${all.pods === 1 ? "needs" : "need"}
        ${many(all.devices, "GPU")} (${many(all.lines_count, "distinct request")})`
      : "No pending pods";
    renew(
      this.main,
      html`<div class="page">
        ${answer(sentence, [
          since_ms === null ? "" : `oldest since ${when(since_ms, shownTime())}`,
          all.lasting
            ? html`<span class="c-bad">${num(all.lasting)} can never be placed</span>`
            : "",
          all.making_room ? `making room for ${num(all.making_room)}` : "",
          all.gated ? `${num(all.gated)} more gated` : "",
          all.rejected
            ? link("pods", `${num(all.rejected)} rejected`, { phase: "rejected" }, "c-bad")
            : "",
          all.pods ? orderWords(all.lines) : "",
          all.lines.some(line => queueWords(line)) ? link("queues", "View queues") : "",
          NEWER,
        ])}
        <div class="lines ${axis ? "timed" : ""}">${rows}</div>
        ${startNote(starts, axis)}
        ${
          all.lines_count > all.lines.length
            ? html`<p class="faint">
                and ${many(all.lines_count - all.lines.length, "more request")}
              </p>`
            : ""
        }
        ${
          all.pods
            ? ""
            : html`<section class="card">
                <p class="lead">
                  All pods are placed. ${link("whatif", "Try another one in What if")}.
                </p>
              </section>`
        }
      </div>`,
    );
  }

  clicked(event) {
    const row = event.target.closest("summary");
    if (row) this.toggle(row.parentElement.dataset.key);
    copyFrom(event);
  }

  /** Remember the open requests for the next update, and a pod of the one just opened in the address. */
  toggle(key) {
    const closed = this.opened.delete(key);
    if (!closed) this.opened.add(key);
    const { first = [] } = this.lines.lines.find(line => keyOf(line) === key) ?? {};
    const named = !closed && first.find(pod => isTold(pod.name));
    this.context.setParameters({ pod: named ? `${named.namespace}/${named.name}` : "" });
  }
}

/** What makes a request distinct. */
const keyOf = line => [lineWords(line), line.queue, line.whose].join(" ");

/** The requests that are open at first: the one of the pod in the address, or the only one. */
const firstOpen = (lines, pod) =>
  lines
    .filter(
      line =>
        lines.length === 1 || line.first.some(each => `${each.namespace}/${each.name}` === pod),
    )
    .map(keyOf);

function lineCard(line, opened, axis) {
  const now = shownTime();
  const key = keyOf(line);
  return html`<details class="line" data-key="${key}" ${opened.has(key) ? html`open` : ""}>
    ${lineHead(line, now, axis)}
    <div class="line-b">
      <div class="why">${gangLink(line)}${reasons(line)}</div>
      <table class="t tight">
        <caption class="unseen">
          First in the queue
        </caption>
        <thead>
          <tr>
            <th scope="col" class="num">#</th>
            <th scope="col">Pod</th>
            <th scope="col">Pending</th>
            <th scope="col" class="hide-s">Closest node</th>
            <th scope="col" class="hide-s">Missing</th>
          </tr>
        </thead>
        <tbody>
          ${line.first.slice(0, ROWS).map(pod => podRow(pod, line, now))}${
            line.pods > ROWS
              ? html`<tr class="more">
                  <td></td>
                  <td colspan="4">
                    ${link(
                      "pods",
                      `and ${num(line.pods - Math.min(ROWS, line.first.length))} more`,
                      { phase: "pending" },
                    )}
                  </td>
                </tr>`
              : ""
          }
        </tbody>
      </table>
    </div>
  </details>`;
}

/** The row of a request; it has no links, because a press on it opens the details. */
function lineHead(line, now, axis) {
  const oldest = since(line.oldest_time, now);
  const why = briefWhy(line);
  return html`<summary class="line-h" data-row>
    <span class="opener" aria-hidden="true">${ICONS.opens}</span>
    <h2>${lineWords(line)}${queueWords(line)}</h2>
    <span><b>${num(line.pods)}</b> ${line.pods === 1 ? "pod" : "pods"}</span>
    <span>${many(line.devices, "GPU")} each</span>
    <span>${oldest === null ? "" : html`oldest <span class="m">${duration(oldest)}</span>`}</span>
    ${startCell(line.start, axis)}
    <span class="line-w" title="${why}"
      >${line.lasting ? html`<span class="chip s-broken">can never be placed</span> ` : ""}${why}</span
    >
  </summary>`;
}

/** The reason of a request in short: its gang, a limit, or the cause that is the easiest to solve. */
function briefWhy({ gang, apart, causes, sentence, nodes }) {
  if (gang && gang.pods < gang.min_available) return sentenceCase(gangWords(gang));
  if (apart) return sentenceCase(apart);
  const [easiest] = causes;
  if (!easiest) return sentenceCase(sentence) || "Not evaluated yet";
  const { words, nodes: count } = easiest;
  return sentenceCase(words) + (count ? ` (${num(count)} of ${many(nodes, "node")})` : "");
}

/** A gang with its present and its required number of pods. */
const gangWords = gang =>
  `gang ${gang.group} has ${num(gang.pods)} of ${num(gang.min_available)} required pods`;

const gangLink = ({ gang }) =>
  gang ? html`<p>${link("pods", sentenceCase(gangWords(gang)), { q: gang.group })}</p>` : "";

/** The queue, unless it is the default one. */
const queueWords = ({ queue }) =>
  queue && queue !== DEFAULT_QUEUE
    ? html` <small>queue <span class="m">${queue}</span></small>`
    : "";

/** The queue order, as in docs/tasks/queues.md. Shares only matter if pods of several queues are pending. */
function orderWords(lines) {
  const isShared = new Set(lines.map(({ queue }) => queue || DEFAULT_QUEUE)).size > 1;
  return isShared ? "ordered by queue share, priority, age" : "ordered by priority, age";
}

function reasons(line) {
  const [first] = line.first;
  const whole = line.apart ? html`<p>${withCode(sentenceCase(line.apart))}.</p>` : "";
  if (!line.causes.length)
    return html`<h3>Why they are pending</h3>
      ${
        whole ||
        html`<p>${line.sentence ? `${sentenceCase(line.sentence)}.` : "Not evaluated yet."}</p>`
      }`;
  // A limit is not about nodes; its sentence has numbers that its cause lacks.
  const causes =
    whole && !line.nodes && line.causes.length === 1
      ? [{ ...line.causes[0], words: line.sentence }]
      : line.causes;
  return html`<h3>
      ${line.nodes ? `Why none of ${many(line.nodes, "node")} fits` : "Why they are pending"}, and
      what helps
    </h3>
    ${causes === line.causes ? whole : ""}${causeList(causes, line.nodes)}
    <p class="try">
      ${link(
        "whatif",
        "Try a change →",
        first && isTold(first.name) ? { pod: `${first.namespace}/${first.name}` } : {},
      )}
    </p>`;
}

const NONE = html`<span class="faint">–</span>`;

/** A pod with its closest node and what that lacks: an amount, or else the reason. */
function podRow(pod, line, now) {
  const waited = since(pod.since_time, now);
  const near = pod.nominated || pod.nearest;
  const node = near ? nodeName(near) : "";
  const miss = line.nearest.find(each => each.node === pod.nearest);
  const amount = miss?.missing || pod.missing;
  const missing = pod.room ? roomWords(pod) : amount || miss?.words || "";
  const narrow = pod.room
    ? [html`${node} ${missing}`]
    : [node ? html`closest ${node}` : "", amount ? `${amount} missing` : missing];
  const priority = pod.priority ? html` <span class="chip">priority ${pod.priority}</span>` : "";
  return html`<tr data-row tabindex="0">
    <td class="num m">${num(pod.position)}</td>
    <td class="name">
      ${namespaceDot(pod.namespace)}${podName(pod.namespace, pod.name)}${priority}${second(narrow)}
    </td>
    <td class="m">${waited === null ? "" : duration(waited)}</td>
    <td class="hide-s">${node || NONE}</td>
    <td class="hide-s">${missing || NONE}</td>
  </tr>`;
}

/** How room is made, in short; the title has the gateway's sentence. */
const roomWords = pod =>
  html`<span class="c-ok" title="${pod.room}"
    >${pod.leaving ? `after ${many(pod.leaving, "eviction")}` : "reserved"}</span
  >`;
