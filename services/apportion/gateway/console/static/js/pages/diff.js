// What differs between two moments: who came and went, what failed, and what people did.
//
// Invariant: headline, fields and address tell the same two moments, whichever of them was changed;
// which events of the ledger these moments have come to is said once, below the headline. The form stands
// from the first moment on, and the answer comes around it: what is typed meanwhile stays.
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
const FIRST = 1; // of a whole ledger: there is no state before that
const UNSEEN = [403, 404];
const MARKS_SHOWN = 6;
const HEADED = ["waiting", "placement"]; // what the heading of their list says
const BEFORE_MS = 300_000;
const AFTER_MS = 900_000;

/** Where the keyboard is in the form, to be there again when that is drawn anew. */
function held() {
  /** @type {any} */
  const at = document.activeElement?.closest("#moments input, #moments button");
  return !at ? "" : at.name ? `#moments [name="${at.name}"]` : "#moments button";
}

/** The page without its answer; the keyboard stays where it was on the page before. */
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
          "Compare asks again.",
        ]),
      );
  }
  return {}; // without an `update`: another moment of the bar is another comparison
}

function draw({ from, to, diff, before, after, line, begun }) {
  const told = [
    count(diff, "placements", "placement"),
    count(diff, "nodes", "node"),
    count(diff, "devices", "card"),
    count(diff, "waiting", "waiting pod"),
    count(diff, "limits", "limit"),
    count(diff, "policy", "policy"),
    count(diff, "configuration", "setting"),
  ].filter(Boolean);
  const changed = html`Between ${named(from)} and ${named(to)},
  ${told.length ? html`${listed(told)} changed` : "nothing changed"}.`;
  mount(
    $("#answer"),
    answer(changed, [
      cameTo({ from, to, diff }),
      begun && fromTheFirst(begun.row),
      link("events", "all events"),
    ]),
  );
  mount($("#near"), offered(line.marks, instant(line.first_time) ?? 0));
  mount(
    $("#lists"),
    html`${totals(before, after)}
      <div class="grid2">
        ${group(
          "health",
          "Cards",
          diff.devices,
          diff.more.devices,
          name => html`<span class="m" title="${name}">${shortId(name)}</span>`,
        )}${group("node", "Nodes", diff.nodes, diff.more.nodes, nodeLink)}
        ${group("refusal", "Waiting pods", diff.waiting, diff.more.waiting, podNamed)}${group(
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

/**
 * A moment of which nothing is known stands in its field, to be mended there; beside it is said
 * how, in the forms of this page.
 */
function drawRefused({ from, to, problem }) {
  const read = { from, to }[problem.field].read;
  mount(
    $("#answer"),
    answer(sentence(problem.message), [
      read && problem.fix
        ? sentence(problem.fix)
        : "Write it as 14:20, 2026-11-20T14:20, -10m, now or #1,200.",
      link("events", "all events"),
    ]),
  );
  $(`#moments [name="${problem.field}"]`).setAttribute("aria-invalid", "true");
}

const podNamed = name => podLink(...name.split("/", 2));
const named = ({ shown, revision }) =>
  revision ? receipt(revision) : html`<span class="nw">${shown}</span>`;

/** Which states of the ledger are compared: a time means the newest event by then. */
function cameTo({ from, to, diff }) {
  const after = ({ revision, time }) =>
    html`after ${receipt(revision)}${time ? ` of ${timeWords(instant(time))}` : ""}`;
  const why = from.revision && to.revision ? "" : ", the newest events by then";
  return html`the ledger ${after(diff.from)} and ${after(diff.to)}${why}`;
}

/** A state is that after its event: what the first one told can only have been there. */
const fromTheFirst = ({ revision, sentence: told }) =>
  html`${receipt(revision)} is the ledger’s first event, so what it told counts as there before:
  ${told}`;

function form({ from, to }) {
  const field = (name, { shown }) =>
    html`<label class="inl"
      >${name}
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
      Times are in the zone of this browser, ${zoneWords()}. 14:20, -10m, now and a revision such as
      #1,200 will do as well. The time bar and its keys move the later one.
    </p>
  </form>`;
}

/** Links to the moments around what happened last. */
const offered = (marks, first) =>
  perMinute(marks)
    .slice(-MARKS_SHOWN)
    .map(
      mark =>
        html`<a
          class="btn hide-s"
          title="${mark.sentence}"
          href="${href("events", { diff: around(mark, first), at: "" })}"
          >around ${when(instant(mark.time), Date.now(), true)}</a
        >`,
    );

/** A field that nobody changed means what it meant, to the last digit of its time. */
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

/** The last mark of each minute: what fails together is one place to look at. */
const perMinute = marks => [...new Map(marks.map(mark => [mark.time.slice(0, 16), mark])).values()];

/** From shortly before a mark, and not before the ledger's beginning, to a while after it. */
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
    ["Memory granted, GiB", gib(before), gib(after), 0],
    ["Cards", before.devices, after.devices, 1],
    ["Cards open to new pods", before.devices_open, after.devices_open, 1],
    ["Nodes ready", before.nodes_ready, after.nodes_ready, 1],
    ["Pods live", live(before), live(after), 0],
    ["Pods waiting", waits(before), waits(after), -1],
  ];
  return html`<table class="t cmp card">
    <caption class="unseen">
      Totals at both moments
    </caption>
    <thead>
      <tr>
        <th scope="col"></th>
        <th scope="col" class="num">from</th>
        <th scope="col" class="num">to</th>
        <th scope="col" class="num">Difference</th>
      </tr>
    </thead>
    <tbody>
      ${rows.map(compared)}
    </tbody>
  </table>`;
}

/** One row of two amounts; `good` is 1 where more is better, -1 where less is. */
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
      : row.after || `no more: ${row.before}`;
  return html`<li>
    <time title="${row.time}">${ms === null ? "" : when(ms, Date.now())}</time
    ><span
      >${shown(row.name)}
      ${
        row.what && !HEADED.includes(row.what) ? html`<span class="faint">${row.what}</span> ` : ""
      }${said}${
        row.cause || row.by
          ? html` <span class="faint">${row.cause || `written by ${row.by}`}</span>`
          : ""
      }</span
    >${receipt(row.revision)}
  </li>`;
}
