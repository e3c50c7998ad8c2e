// What is said about one card: while it is pointed at, and in the panel once it is chosen.
import { cordonButton } from "../act.js";
import { get, path, Problem } from "../api.js";
import { between, clock, duration, instant, num, percent, shortId, shortModel, when } from "../format.js";
import { html } from "../html.js";
import { ICONS } from "../icons.js";
import { link, podLink, receipt } from "../links.js";
import { shownTime } from "../moment.js";
import { problemNote } from "../parts.js";
import { linked } from "../sentence.js";
import { ABSENT, FAILED, granted, stateOf, stateWords, UNREADY, used } from "./model.js";

const HOLDERS_SHOWN = 6;

/** The facts that the picture itself knows; `more` is what was asked besides, or null. */
export function facts(node, card, more = null) {
  const [model, mib] = node.model[card];
  const state = stateOf(node, card);
  const held = Math.min(1, granted(node, card));
  const use = used(node, card);
  return html`<div class="hc-h"><b>${node.name}</b> <span>card ${node.index[card]}</span><span class="chip s-${state}">${stateWords(node, card)}</span></div>
    <div class="hc-m"><span>${shortModel(model)}${more?.device ? ` · ${more.device.mode}` : ""}</span><span class="m">${more?.device ? shortId(more.device.device) : ""}</span></div>
    ${notes(node, card)}
    <div class="membar" aria-hidden="true">${bars(node, card)}</div>
    <div class="hc-m"><span><b>${num(mib * held)}</b> of ${num(mib)} MiB granted</span><span>${use >= 0 ? `${percent(use / Math.max(held, 1e-6))} used` : ""}</span></div>
    ${holders(node, card, mib, more)}`;
}

function notes(node, card) {
  const bits = node.state[card];
  const said = [];
  if (bits & UNREADY) said.push(["bad", "broken", "The node is not ready"]);
  if (bits & ABSENT) said.push(["bad", "broken", "The node's agent no longer reports it"]);
  if (bits & FAILED) said.push(["bad", "broken", node.notes[card] || "It failed; nobody says why"]);
  if (node.cordons[card]) said.push(["warn", "soon", `Cordoned: ${node.cordons[card]}`]);
  if (node.cordon) said.push(["warn", "soon", `Node cordoned: ${node.cordon}`]);
  return said.map(([look, icon, words]) => html`<p class="note ${look}">${ICONS[icon]}<span>${words}</span></p>`);
}

function bars(node, card) {
  const parts = [];
  for (let at = node.start[card]; at < node.start[card + 1]; at += 1) {
    const share = node.memory[at] || 0.01;
    const inner = node.used[at] >= 0 ? node.used[at] / share : node.running[at];
    parts.push(html`<i class="g" data-s="width:${Math.min(100, share * 100)}%"><i data-s="width:${Math.min(100, inner * 100)}%"></i></i>`);
  }
  return parts;
}

function holders(node, card, mib, more) {
  const rows = [];
  for (let at = node.start[card]; at < node.start[card + 1] && rows.length < HOLDERS_SHOWN; at += 1) {
    const pod = node.pods[node.holder[at]];
    const since = more?.since.get(`${pod.namespace}/${pod.name}`);
    const seconds = since === undefined ? null : between(since, shownTime());
    const name = more ? podLink(pod.namespace, pod.name) : html`<span class="m"><span class="ns">${pod.namespace}/</span>${pod.name}</span>`;
    rows.push(html`<li>${name}<span>${num(mib * node.memory[at])} MiB · ${seconds === null ? pod.phase : duration(seconds)}</span></li>`);
  }
  const left = node.start[card + 1] - node.start[card] - rows.length;
  if (!rows.length) return node.state[card] ? "" : html`<p class="faint">Nobody holds it.</p>`;
  return html`<ul class="holders">${rows}${left > 0 ? html`<li class="faint">and ${num(left)} more</li>` : ""}</ul>`;
}

/** What the gateway knows besides: the device's id and mode, since when it is held. */
export async function ask(node, card) {
  const [detail, placements] = await Promise.all([
    get(`nodes/${path(node.name)}`), get("placements", { node: node.name, limit: 1000 }),
  ]);
  const device = detail.devices.find(each => each.index === node.index[card]) ?? null;
  const since = new Map(placements.items.map(item => [`${item.namespace}/${item.name}`, item.placed_time]));
  return { device, since, node: detail.node, story: device ? await story(device.device) : null };
}

async function story(device) {
  try {
    return (await get(`history/devices/${path(device)}`, { limit: 1000 })).items;
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    return problem;
  }
}

/** The panel of a chosen card. */
export function panel(node, card, more) {
  const told = !more ? html`<p class="faint">asking…</p>`
    : html`${happened(more.story)}
      <div class="acts">${more.device ? html`${link("whatif", "What if it is lost?", { lose: more.device.device }, "btn")} ${link("whatif", "What if its node is lost?", { lose: node.name }, "btn")}` : ""}
      ${cordonButton(more.node)}</div>`;
  return html`<button class="x" aria-label="Close">${ICONS.close}</button>${facts(node, card, more)}${told}`;
}

function happened(items) {
  if (items === null) return "";
  if (items instanceof Problem) return html`<h3>What happened to it</h3>${problemNote(items, "what happened to a card")}`;
  if (!items.length) return html`<h3>What happened to it</h3><p class="faint">Nothing since the ledger's beginning.</p>`;
  const newest = items.toSorted((a, b) => b.revision - a.revision).slice(0, 9);
  return html`<h3>What happened to it</h3><ol class="mini">${newest.map(item => html`<li><time title="${item.time}">${said(item.time)}</time><span>${linked(item.sentence)}</span>${receipt(item.revision)}</li>`)}</ol>`;
}

function said(time) {
  const ms = instant(time);
  if (ms === null) return "";
  const words = when(ms, shownTime(), true);
  return words.length > 5 ? words : clock(ms);
}
