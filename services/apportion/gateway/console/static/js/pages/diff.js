// What differs between two moments: who came and went, what failed, and what people did.
import { getNow } from "../api.js";
import { instant, many, num, shortId, when } from "../format.js";
import { $, html, mount } from "../html.js";
import { link, nodeLink, podLink, receipt } from "../links.js";
import { answer, listed } from "../parts.js";
import { go, href } from "../route.js";

const ROWS = 40;
const MARKS_SHOWN = 6;
const BEFORE_MS = 300_000;
const AFTER_MS = 900_000;

/** See app.js. */
export async function openDiff(main, context) {
  const [from, to] = (context.parameters.get("diff") ?? "").split(",").map(text => text.trim());
  const [diff, line] = await Promise.all([getNow("diff", { from, to, limit: ROWS }), getNow("timeline", { bins: 1 })]);
  const [before, after] = await Promise.all([diff.from, diff.to].map(({ revision }) => getNow("summary", { at: String(revision) })));
  if (!context.alive()) return null;
  draw(main, { from, to, diff, before, after, marks: line.marks, first: instant(line.first_time) ?? 0 });
  return { update() {}, close() {} };
}

function draw(main, { from, to, diff, before, after, marks, first }) {
  const [a, b] = [instant(diff.from.time), instant(diff.to.time)];
  const told = [
    count(diff, "placements", "placement"), count(diff, "nodes", "node"), count(diff, "devices", "card"),
    count(diff, "policy", "policy"), count(diff, "configuration", "setting"),
  ].filter(Boolean);
  const sentence = html`Between ${when(a, Date.now())} and ${when(b, Date.now())}, ${told.length ? html`${listed(told)} changed` : "nothing changed"}.`;
  mount(main, html`<div class="page">${answer(sentence, [
    html`rev ${receipt(diff.from.revision)} to ${receipt(diff.to.revision)}`, link("events", "all events")])}
    <form class="bar" id="moments"><label class="inl">from <input name="from" value="${from}" class="m"></label><label class="inl">to <input name="to" value="${to}" class="m"></label><button class="btn pri">Compare</button>
    ${perMinute(marks).slice(-MARKS_SHOWN).map(mark => html`<a class="btn hide-s" title="${mark.sentence}" href="${href("events", { diff: around(mark, first) })}">around ${when(instant(mark.time), Date.now(), true)}</a>`)}</form>
    ${totals(before, after, [a, b])}
    <div class="grid2">${group("health", "Cards", diff.devices, diff.more.devices, name => html`<span class="m" title="${name}">${shortId(name)}</span>`)}${group("node", "Nodes", diff.nodes, diff.more.nodes, nodeLink)}
    ${group("operator", "Policy", diff.policy, diff.more.policy)}${group("operator", "Configuration", diff.configuration, diff.more.configuration)}
    ${group("placement", "Placements", diff.placements, diff.more.placements, name => podLink(...name.split("/", 2)))}</div></div>`);
  $("#moments").addEventListener("submit", event => {
    event.preventDefault();
    const fields = new FormData(event.target);
    go(href("events", { diff: `${fields.get("from")},${fields.get("to")}` }));
  });
}

/** The last mark of each minute: what fails together is one place to look at. */
const perMinute = marks => [...new Map(marks.map(mark => [mark.time.slice(0, 16), mark])).values()];

/** From shortly before a mark, and not before the ledger's beginning, to a while after it. */
const around = (mark, first) => {
  const ms = instant(mark.time);
  return [Math.max(ms - BEFORE_MS, first + 1000), ms + AFTER_MS].map(each => new Date(Math.min(each, Date.now())).toISOString().replace(/\.\d+Z$/, "Z")).join(",");
};

function count(diff, list, noun) {
  const all = diff[list].length + (diff.more[list] ?? 0);
  return all ? many(all, noun) : "";
}

const live = summary => Object.entries(summary.phases).reduce((sum, [phase, n]) => (phase === "rejected" ? sum : sum + n), 0);
const waits = summary => (summary.phases.refused ?? 0) + (summary.phases.pending ?? 0);

function totals(before, after, [a, b]) {
  const gib = summary => (summary.memory_mib - summary.memory_free_mib) / 1024;
  const rows = [
    ["Memory granted, GiB", gib(before), gib(after), 0], ["Cards", before.devices, after.devices, 1],
    ["Cards open to new pods", before.devices_open, after.devices_open, 1], ["Nodes ready", before.nodes_ready, after.nodes_ready, 1],
    ["Pods live", live(before), live(after), 0], ["Pods waiting", waits(before), waits(after), -1],
  ];
  return html`<table class="t cmp card"><caption class="unseen">Totals at both moments</caption><thead><tr><th scope="col"></th><th scope="col" class="num">${when(a, Date.now())}</th><th scope="col" class="num">${when(b, Date.now())}</th><th scope="col" class="num">Difference</th></tr></thead><tbody>${rows.map(compared)}</tbody></table>`;
}

/** One row of two amounts; `good` is 1 where more is better, -1 where less is. */
export function compared([words, before, after, good, format = num]) {
  const same = Math.round(before) === Math.round(after);
  const look = same || !good ? "" : (after - before) * good < 0 ? "c-bad" : "c-ok";
  const sign = same ? "=" : `${after > before ? "▲" : "▼"} ${format(Math.abs(after - before))}`;
  return html`<tr><th scope="row">${words}</th><td class="num m">${format(before)}</td><td class="num m">${format(after)}</td><td class="num m ${look}">${sign}</td></tr>`;
}

function group(kind, words, rows, more = 0, named = name => html`<span class="m">${name}</span>`) {
  if (!rows.length) return "";
  return html`<section class="card dg k-${kind}"><h2><i class="kd"></i>${words} <b class="m">${num(rows.length + more)}</b></h2><ol class="mini">${rows.map(row => diffRow(row, named))}${more ? html`<li class="faint"><time></time><span>and ${num(more)} more</span></li>` : ""}</ol></section>`;
}

function diffRow(row, named) {
  const ms = instant(row.time);
  const said = row.before && row.after ? `${row.before} → ${row.after}` : row.after || `no more: ${row.before}`;
  return html`<li><time title="${row.time}">${ms === null ? "" : when(ms, Date.now())}</time><span>${named(row.name)} ${row.what ? html`<span class="faint">${row.what}</span> ` : ""}${said}${row.by ? html` <span class="faint">by ${row.by}</span>` : ""}</span>${receipt(row.revision)}</li>`;
}
