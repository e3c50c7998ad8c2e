// Waiting: how many pods, for how many cards, since when; and for each line why, and what would help.
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
      ? html`${many(all.pods, "pod")} ${all.pods === 1 ? "waits" : "wait"} for
        ${many(all.devices, "card")} in
        ${many(all.lines_count, "line")}${
          since_ms === null ? "" : `; the longest since ${when(since_ms, shownTime())}`
        }.`
      : "Nobody waits.";
    renew(
      this.main,
      html`<div class="page">
        ${answer(sentence, [
          all.lasting
            ? html`<span class="c-bad">${num(all.lasting)} can never have a place</span>`
            : "",
          all.making_room ? `room is made for ${num(all.making_room)}` : "",
          all.gated
            ? `${num(all.gated)} more ${all.gated === 1 ? "waits for its" : "wait for their"} gates`
            : "",
          all.rejected
            ? link("pods", `${num(all.rejected)} cannot be read`, { phase: "rejected" }, "c-bad")
            : "",
          all.pods ? orderWords(all.lines) : "",
          NEWER,
        ])}
        ${all.lines.map((line, at) => lineCard(line, at))}
        ${
          all.lines_count > all.lines.length
            ? html`<p class="faint">
                and ${num(all.lines_count - all.lines.length)} lines behind them
              </p>`
            : ""
        }
        ${
          all.pods
            ? ""
            : html`<section class="card">
                <p class="lead">
                  Every pod that can have a place has one.
                  ${link("whatif", "Try what would happen")} with another.
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
          ${lineWords(line)}${queueWords(line)}${line.lasting ? html` <span class="chip s-broken">never</span>` : ""}
        </h2>
        <p>
          <b>${num(line.pods)}</b>
          ${line.pods === 1 ? "pod" : "pods"}${oldest === null ? "" : ` · oldest ${duration(oldest)}`}
          · ${many(line.devices, "card")} each${gangWords(line)}
        </p>
      </div>
      ${dots(line, now)}
    </div>
    <div class="line-b">
      <div class="why">${reasons(line)}</div>
      <table class="t tight">
        <caption class="unseen">
          The first in line
        </caption>
        <thead>
          <tr>
            <th scope="col" class="num">#</th>
            <th scope="col">Pod</th>
            <th scope="col">Waits</th>
            <th scope="col" class="hide-s">Nearest</th>
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
                      { phase: "waiting" },
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

/** The line as a picture: a bar for each pod, as high as it has waited, in its namespace's colour. */
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
          title="${pod.position}. a pod of ${pod.namespace}, ${duration(waits[at])}"
        ></a>`;
  return html`<div class="dots" role="img" aria-label="${many(line.pods, "pod")} in line">
    ${line.first.map(bar)}
  </div>`;
}

/** The gang that the line is, or begins with: how many must have a place together, and how many are there. */
const gangWords = ({ gang }) =>
  gang
    ? html` · gang ${link("pods", gang.group, { q: gang.group }, "m")} needs
      ${num(gang.min_available)}, has ${num(gang.pods)}`
    : "";

/** A queue that somebody chose: most pods are of the one that is there without it. */
const queueWords = ({ queue }) =>
  queue && queue !== DEFAULT_QUEUE
    ? html` <small>queue <span class="m">${queue}</span></small>`
    : "";

/** Whose turn it is, as docs/guides/queues.md has it: what each queue holds matters only where pods of several wait. */
function orderWords(lines) {
  const isShared = new Set(lines.map(({ queue }) => queue || DEFAULT_QUEUE)).size > 1;
  return isShared
    ? "order: the queue with the least share for its weight, then priority, then who came first"
    : "order: priority, then who came first";
}

function reasons(line) {
  const [first] = line.first;
  const whole = line.apart ? html`<p>${withCode(sentenceCase(line.apart))}.</p>` : "";
  if (!line.causes.length)
    return html`<h3>Why not yet</h3>
      ${
        whole ||
        html`<p>
          ${line.sentence ? `${sentenceCase(line.sentence)}.` : "Nobody has looked for a place yet."}
        </p>`
      }`;
  // Nodes are not what one limit is about: its sentence has the numbers that its cause has not.
  const causes =
    whole && !line.nodes && line.causes.length === 1
      ? [{ ...line.causes[0], words: line.sentence }]
      : line.causes;
  return html`<h3>
      ${line.nodes ? `Why none of ${many(line.nodes, "node")}` : "Why not yet"}, and what would
      unblock it
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

/** What its nearest node lacks is as the line has it: an amount, or else what is the matter there. */
function podRow(pod, line, now) {
  const waited = since(pod.since_time, now);
  const near = pod.nominated || pod.nearest;
  const node = near ? nodeName(near) : "";
  const miss = line.nearest.find(each => each.node === pod.nearest);
  const amount = miss?.missing || pod.missing;
  const missing = pod.room ? roomWords(pod) : amount || miss?.words || "";
  const narrow = pod.room
    ? [html`${node} ${missing}`]
    : [node ? html`nearest ${node}` : "", amount ? `${amount} missing` : missing];
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

/** In short; the whole sentence is the gateway's. */
const roomWords = pod =>
  html`<span class="c-ok" title="${pod.room}"
    >${pod.leaving ? `once ${many(pod.leaving, "pod")} left` : "is kept for it"}</span
  >`;
