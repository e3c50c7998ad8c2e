// Pending pods, grouped by request: why no node fits, what would help, and the first pods of each group.
import { get } from "../api.js";
import { meetNamespaces, namespaceColour } from "../colours.js";
import { duration, instant, many, num, when } from "../format.js";
import { html, renew } from "../html.js";
import { isTold, lineWords, link, namespaceDot, nodeName, podName, since } from "../words.js";
import { shownTime } from "../moment.js";
import { answer, causeList, copyFrom, second } from "../parts.js";
import { href } from "../route.js";
import { ListPage, NEWER } from "./list_page.js";
import { sentenceCase, withCode } from "../typography.js";

const ASKED = 90;
const ROWS_FIRST = 6;
const ROWS_OTHERS = 3;
const DEFAULT_QUEUE = "default";

/** See app.js. */
export const open = (main, context) => new WaitingPage(main, context).start();

class WaitingPage extends ListPage {
  async load() {
    this.lines = await get("lines", { limit: ASKED });
    this.revision = this.lines.revision;
    meetNamespaces(this.lines.lines.flatMap(line => line.first.map(pod => pod.namespace)));
  }

  draw() {
    const { lines: all } = this;
    const since_ms = instant(all.oldest_time);
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
          NEWER,
        ])}
        ${all.lines.map((line, at) => lineCard(line, at))}
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
    copyFrom(event);
  }
}

function lineCard(line, at) {
  const now = shownTime();
  const oldest = since(line.oldest_time, now);
  const rows = at ? ROWS_OTHERS : ROWS_FIRST;
  return html`<section class="card line">
    <div class="line-h">
      <div>
        <h2>
          ${lineWords(line)}${queueWords(line)}${
            line.lasting ? html` <span class="chip s-broken">can never be placed</span>` : ""
          }
        </h2>
        <p>
          <b>${num(line.pods)}</b>
          ${line.pods === 1 ? "pod" : "pods"}${oldest === null ? "" : ` · oldest ${duration(oldest)}`}
          · ${many(line.devices, "GPU")} each${gangWords(line)}
        </p>
      </div>
      ${dots(line, now)}
    </div>
    <div class="line-b">
      <div class="why">${reasons(line)}</div>
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
          ${line.first.slice(0, rows).map(pod => podRow(pod, line, now))}${
            line.pods > rows
              ? html`<tr class="more">
                  <td></td>
                  <td colspan="4">
                    ${link(
                      "pods",
                      `and ${num(line.pods - Math.min(rows, line.first.length))} more`,
                      { phase: "pending" },
                    )}
                  </td>
                </tr>`
              : ""
          }
        </tbody>
      </table>
    </div>
  </section>`;
}

/** A group as a picture: a bar per pod in its namespace's colour, as high as the time it has been pending. */
function dots(line, now) {
  const waits = line.first.map(pod => since(pod.since_time, now) ?? 0);
  const most = Math.max(1, ...waits);
  const style = (pod, at) =>
    `background:${namespaceColour(pod.namespace)};height:${Math.max(4, Math.round((30 * waits[at]) / most))}px`;
  const bar = (pod, at) =>
    isTold(pod.name)
      ? html`<a
          href="${href(`pod/${pod.namespace}/${pod.name}`)}"
          tabindex="-1"
          data-s="${style(pod, at)}"
          title="${pod.position}. ${pod.namespace}/${pod.name}, ${duration(waits[at])}"
        ></a>`
      : html`<a
          tabindex="-1"
          data-s="${style(pod, at)}"
          title="${pod.position}. a pod in ${pod.namespace}, ${duration(waits[at])}"
        ></a>`;
  return html`<div class="dots" role="img" aria-label="${many(line.pods, "pod")} in the queue">
    ${line.first.map(bar)}
  </div>`;
}

/** The gang of the group's first pod, with its required and its present number of pods. */
const gangWords = ({ gang }) =>
  gang
    ? html` · gang ${link("pods", gang.group, { q: gang.group }, "m")} has ${num(gang.pods)} of
      ${num(gang.min_available)} required pods`
    : "";

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
