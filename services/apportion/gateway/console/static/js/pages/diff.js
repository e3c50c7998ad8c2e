// The differences between two moments: pods, nodes, devices, limits and settings that changed.
//
// Invariants: headline, fields and address name the same two moments. The revisions that they resolve to are
// below the headline. The form is there at once and the answer is added around it, so typed text is kept.
import { getNow, orNone, Problem } from "../api.js";
import { askedMoment, timeWords, zoneWords } from "../moment.js";
import { instant, many, num, shortId, when } from "../format.js";
import { $, html, mount } from "../html.js";
import { link, nodeLink, podLink, receipt } from "../words.js";
import { answer, listed } from "../parts.js";
import { bothMoments, go, href } from "../route.js";
import { workingAnswer } from "../working.js";
import { sentence } from "../typography.js";

const ROWS = 40;
const FIRST = 1; // the first revision: there is no state before it
const UNSEEN = [403, 404];
const MARKS_SHOWN = 6;
const HEADED = ["waiting", "placement"]; // the heading of their list says it
const BEFORE_MS = 300_000;
const AFTER_MS = 900_000;

/** The selector of the focused control of the form, to focus it again after a redraw. */
function held() {
  /** @type {any} */
  const at = document.activeElement?.closest("#moments input, #moments button");
  return !at ? "" : at.name ? `#moments [name="${at.name}"]` : "#moments button";
}

/** Show the page without its answer; keeps the focus. */
function stand(main, ends) {
  const had = held();
  mount(
    main,
    html`<div class="page">
      <div id="answer">
        ${workingAnswer(html`Comparing ${named(ends.from)} with ${named(ends.to)}`)}
      </div>
      ${form(ends)}
      <div class="through" id="lists"></div>
    </div>`,
  );
  listen(ends);
  if (had) $(had).focus({ preventScroll: true });
}

/** See app.js. */
export async function openDiff(main, context) {
  const [from, to] = bothMoments(context.parameters);
  stand(main, { from, to });
  try {
    const [diff, line] = await Promise.all([
      getNow("diff", { from: from.asked, to: to.asked, limit: ROWS }),
      getNow("timeline", { bins: 1 }),
    ]);
    const [begun, before, after] = await Promise.all([
      diff.from.revision === FIRST && orNone(getNow(`log/${FIRST}`), UNSEEN),
      ...[diff.from, diff.to].map(({ revision }) => getNow("summary", { at: String(revision) })),
    ]);
    if (!context.alive()) return null;
    draw({ from, to, diff, before, after, line, begun });
  } catch (problem) {
    const ends = ["from", "to"].includes(problem.field);
    if (!(problem instanceof Problem) || !(ends || held())) throw problem;
    if (!context.alive()) return null;
    if (ends) drawRefused({ from, to, problem });
    else
      mount(
        $("#answer"),
        answer(sentence(problem.message), [
          problem.fix && sentence(problem.fix),
          "Press Compare to try again.",
        ]),
      );
  }
  return {}; // without `update`: another moment in the time bar starts another comparison
}

function draw({ from, to, diff, before, after, line, begun }) {
  const told = [
    count(diff, "placements", "placement"),
    count(diff, "nodes", "node"),
    count(diff, "devices", "GPU"),
    count(diff, "waiting", "pending pod"),
    count(diff, "limits", "limit"),
    count(diff, "policy", "policy setting"),
    count(diff, "configuration", "setting"),
  ].filter(Boolean);
  const changed = html`${told.length ? html`${listed(told)} changed` : "Nothing changed"} between
  ${named(from)} and ${named(to)}`;
  mount(
    $("#answer"),
    answer(changed, [
      cameTo({ from, to, diff }),
      begun && fromTheFirst(begun.row),
      link("events", "All events"),
    ]),
  );
  mount($("#near"), offered(line.marks, instant(line.first_time) ?? 0));
  mount(
    $("#lists"),
    html`${totals(before, after)}
      <div class="grid2">
        ${group(
          "health",
          "GPUs",
          diff.devices,
          diff.more.devices,
          name => html`<span class="m" title="${name}">${shortId(name)}</span>`,
        )}${group("node", "Nodes", diff.nodes, diff.more.nodes, nodeLink)}
        ${group("refusal", "Pending pods", diff.waiting, diff.more.waiting, podNamed)}${group(
          "operator",
          "Limits",
          diff.limits,
          diff.more.limits,
        )}
        ${group("operator", "Policy", diff.policy, diff.more.policy)}${group(
          "operator",
          "Configuration",
          diff.configuration,
          diff.more.configuration,
        )}
        ${group("placement", "Placements", diff.placements, diff.more.placements, podNamed)}
      </div>`,
  );
}

/** Show the error of an invalid moment. Its text stays in the field, with the accepted forms above it. */
function drawRefused({ from, to, problem }) {
  const read = { from, to }[problem.field].read;
  mount(
    $("#answer"),
    answer(sentence(problem.message), [
      read && problem.fix
        ? sentence(problem.fix)
        : "Write 14:20, 2026-11-20T14:20, -10m, now or #1,200.",
      link("events", "All events"),
    ]),
  );
  $(`#moments [name="${problem.field}"]`).setAttribute("aria-invalid", "true");
}

const podNamed = name => podLink(...name.split("/", 2));
const named = ({ shown, revision }) =>
  revision ? receipt(revision) : html`<span class="nw">${shown}</span>`;

/** The compared revisions. A time resolves to the newest event before it. */
function cameTo({ from, to, diff }) {
  const after = ({ revision, time }) =>
    html`${receipt(revision)}${time ? ` (${timeWords(instant(time))})` : ""}`;
  const why = from.revision && to.revision ? "" : ", the newest events at these times";
  return html`Compares ${after(diff.from)} with ${after(diff.to)}${why}`;
}

/** A state includes its own event, so the first event of the ledger never counts as a change. */
const fromTheFirst = ({ revision, sentence: told }) =>
  html`Not counted as a change: ${receipt(revision)}, the first event: ${told}`;

function form({ from, to }) {
  const field = (name, { shown }) =>
    html`<label class="inl"
      >${name === "from" ? "From" : "To"}
      <input
        name="${name}"
        value="${shown}"
        class="m"
        aria-describedby="forms"
        autocomplete="off"
        spellcheck="false"
    /></label>`;
  return html`<form class="bar" id="moments">
    ${field("from", from)}${field("to", to)}<button class="btn pri">Compare</button
    ><span class="through" id="near"></span>
    <p class="faint small" id="forms">
      Times are in ${zoneWords()}. Also accepted: 14:20, -10m, now or a revision such as #1,200. The
      time bar moves the later moment.
    </p>
  </form>`;
}

/** Links to comparisons around the newest marks. */
const offered = (marks, first) =>
  perMinute(marks)
    .slice(-MARKS_SHOWN)
    .map(
      mark =>
        html`<a
          class="btn hide-s"
          title="${mark.sentence}"
          href="${href("events", { diff: around(mark, first), at: "" })}"
          >Around ${when(instant(mark.time), Date.now(), true)}</a
        >`,
    );

/** Handle the form. An unchanged field keeps the exact moment of the address. */
function listen(ends) {
  $("#moments").addEventListener("submit", event => {
    event.preventDefault();
    const fields = new FormData(event.target);
    const [from, to] = ["from", "to"].map(name => {
      const text = String(fields.get(name)).trim();
      return text === ends[name].shown
        ? ends[name].asked
        : askedMoment(text, Date.now(), true).asked;
    });
    const address = href("events", { diff: `${from},${to}`, at: "" });
    if (address === location.hash) dispatchEvent(new Event("hashchange"));
    else go(address);
  });
}

/** The last mark of each minute, because failures often come together. */
const perMinute = marks => [...new Map(marks.map(mark => [mark.time.slice(0, 16), mark])).values()];

/** A period around a mark, within the ledger. */
const around = (mark, first) => {
  const ms = instant(mark.time);
  return [Math.max(ms - BEFORE_MS, first + 1000), ms + AFTER_MS]
    .map(each => new Date(Math.min(each, Date.now())).toISOString().replace(/\.\d+Z$/, "Z"))
    .join(",");
};

function count(diff, list, noun) {
  const all = diff[list].length + (diff.more[list] ?? 0);
  return all ? many(all, noun) : "";
}

const live = summary =>
  Object.entries(summary.phases).reduce(
    (sum, [phase, n]) => (phase === "rejected" ? sum : sum + n),
    0,
  );
const waits = summary => (summary.phases.refused ?? 0) + (summary.phases.pending ?? 0);

function totals(before, after) {
  const gib = summary => (summary.memory_mib - summary.memory_free_mib) / 1024;
  const rows = [
    ["Memory allocated (GiB)", gib(before), gib(after), 0],
    ["GPUs", before.devices, after.devices, 1],
    ["GPUs open", before.devices_open, after.devices_open, 1],
    ["Nodes ready", before.nodes_ready, after.nodes_ready, 1],
    ["Pods live", live(before), live(after), 0],
    ["Pods pending", waits(before), waits(after), -1],
  ];
  return html`<table class="t cmp card">
    <caption class="unseen">
      Totals at both moments
    </caption>
    <thead>
      <tr>
        <th scope="col"></th>
        <th scope="col" class="num">From</th>
        <th scope="col" class="num">To</th>
        <th scope="col" class="num">Change</th>
      </tr>
    </thead>
    <tbody>
      ${rows.map(compared)}
    </tbody>
  </table>`;
}

/** A row that compares two amounts. `good` is 1 if more is better, -1 if less is, else 0. */
export function compared([words, before, after, good, format = num]) {
  const same = Math.round(before) === Math.round(after);
  const look = same || !good ? "" : (after - before) * good < 0 ? "c-bad" : "c-ok";
  const sign = same ? "=" : `${after > before ? "▲" : "▼"} ${format(Math.abs(after - before))}`;
  return html`<tr>
    <th scope="row">${words}</th>
    <td class="num m">${format(before)}</td>
    <td class="num m">${format(after)}</td>
    <td class="num m ${look}">${sign}</td>
  </tr>`;
}

function group(kind, words, rows, more = 0, shown = name => html`<span class="m">${name}</span>`) {
  if (!rows.length) return "";
  return html`<section class="card dg k-${kind}">
    <h2><i class="kd"></i>${words} <b class="m">${num(rows.length + more)}</b></h2>
    <ol class="mini">
      ${rows.map(row => diffRow(row, shown))}${
        more ? html`<li class="faint"><time></time><span>and ${num(more)} more</span></li>` : ""
      }
    </ol>
  </section>`;
}

function diffRow(row, shown) {
  const ms = instant(row.time);
  const said =
    row.before && row.after
      ? `${row.before} → ${row.after}`
      : row.after || `removed: ${row.before}`;
  return html`<li>
    <time title="${row.time}">${ms === null ? "" : when(ms, Date.now())}</time
    ><span
      >${shown(row.name)}
      ${
        row.what && !HEADED.includes(row.what) ? html`<span class="faint">${row.what}</span> ` : ""
      }${said}${
        row.cause || row.by ? html` <span class="faint">${row.cause || `by ${row.by}`}</span>` : ""
      }</span
    >${receipt(row.revision)}
  </li>`;
}
