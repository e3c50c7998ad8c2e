// The details of a device or a node: in the tooltip, and in the panel of the selected one.
import { actNotes, cardTarget, cordonButtons, nodeTarget } from "../act.js";
import { get, path, Problem } from "../api.js";
import {
  between,
  clock,
  duration,
  instant,
  many,
  num,
  percent,
  shortId,
  shortModel,
  when,
} from "../format.js";
import { html, ICONS } from "../html.js";
import { coresHeld, coreUnit, isTold, link, podName, receipt, told } from "../words.js";
import { isLive, moment, shownTime } from "../moment.js";
import { problemNote } from "../parts.js";
import { href } from "../route.js";
import {
  ABSENT,
  FAILED,
  granted,
  isFree,
  stateOf,
  stateWords,
  UNREADY,
  used,
  WHOLE,
} from "./model.js";

const HOLDERS_SHOWN = 6;
const EVENTS_SHOWN = 9;
const OF_ITS_NODE = new Set([
  "NodeCordoned",
  "NodeUncordoned",
  "NodeCordonLifted",
  "NodeSilent",
  "NodeHeard",
  "NodeGone",
]);
const stories = new Map(); // events by path, the oldest first; a ledger only grows, so they stay valid

/** The details that the picture already has, for the tooltip. */
export const facts = (node, card) =>
  html`${head(node, card)}${notes(node, card)}${amounts(node, card)}`;

function head(node, card, more = null) {
  if (card === WHOLE) {
    const models = [...Map.groupBy(node.model, ([model]) => model)].map(
      ([model, { length }]) => `${length} × ${shortModel(model)}`,
    );
    return html`<div class="hc-h">
        <b>${node.name}</b> <span>node</span
        ><span class="chip s-${nodeLook(node)}">${nodeWords(node)}</span>
      </div>
      <div class="hc-m"><span>${models.join(", ")}</span></div>`;
  }
  const state = stateOf(node, card);
  const name = more
    ? html`<a href="${cardAddress(node, WHOLE)}" data-choose="${node.name}">${node.name}</a>`
    : node.name;
  return html`<div class="hc-h">
      <b>${name}</b> <span>device ${node.index[card]}</span
      ><span class="chip s-${state}">${stateWords(node, card)}</span>
    </div>
    <div class="hc-m">
      <span>${shortModel(node.model[card][0])}${more?.device ? ` · ${more.device.mode}` : ""}</span
      ><span class="m">${more?.device ? shortId(more.device.device) : ""}</span>
    </div>`;
}

const nodeLook = node => (!node.ready ? "broken" : node.cordon ? "cordoned" : "");
const nodeWords = node => (!node.ready ? "not ready" : node.cordon ? "cordoned" : "ready");

/** A device in an address, NODE:INDEX, or a node. */
export const cardName = (node, card) =>
  card === WHOLE ? node.name : `${node.name}:${node.index[card]}`;
const cardAddress = (node, card) => href("fleet", { card: cardName(node, card) });

function amounts(node, card, more = null) {
  if (card === WHOLE) return nodeAmounts(node, more);
  const mib = node.model[card][1];
  const held = Math.min(1, granted(node, card));
  const use = used(node, card);
  const { device } = more ?? {};
  const unit = coreUnit(device?.family);
  const taken = device ? device.cores - device.cores_free : 0;
  return html`<div class="membar" aria-hidden="true">${bars(node, card)}</div>
    <div class="hc-m">
      <span><b>${num(mib * held)}</b> of ${num(mib)} MiB allocated</span
      ><span>${use >= 0 ? `${percent(use / Math.max(held, 1e-6))} used` : ""}</span>
    </div>
    ${
      device
        ? html`<div class="hc-m">
            <span
              ><b>${unit ? num(taken) : coresHeld(taken, device.family)}</b> of
              ${unit ? many(device.cores, unit) : "the cores"}</span
            ><span
              ><b>${num(device.slots - device.slots_free)}</b> of
              ${many(device.slots, "slot")}</span
            >
          </div>`
        : ""
    }
    ${holders(node, card, mib, more)}`;
}

function nodeAmounts(node, more) {
  const cards = Array.from({ length: node.count }, (_, card) => card);
  const all = cards.reduce((sum, card) => sum + node.model[card][1], 0);
  const held = cards.reduce(
    (sum, card) => sum + node.model[card][1] * Math.min(1, granted(node, card)),
    0,
  );
  const taken = cards.filter(card => granted(node, card) > 0).length;
  const free = cards.filter(card => isFree(node, card)).length;
  const known = more?.node;
  return html`<div class="hc-m">
      <span><b>${num(taken)}</b> of ${many(node.count, "GPU")} allocated</span
      ><span>${num(free)} free</span>
    </div>
    <div class="hc-m">
      <span><b>${num(held)}</b> of ${num(all)} MiB allocated</span>
    </div>
    ${
      known
        ? html`<div class="hc-m">
              <span
                ><b>${num(known.cpu_used_milli / 1000)}</b> of ${num(known.cpu_milli / 1000)}
                CPU</span
              ><span
                ><b>${num(known.memory_used_mib / 1024)}</b> of ${num(known.memory_mib / 1024)}
                GiB</span
              ><span><b>${num(known.pods)}</b> of ${many(known.pods_max, "pod")}</span>
            </div>
            <ul class="holders">
              ${cards.map(
                card =>
                  html`<li>
                    <a
                      class="m"
                      href="${cardAddress(node, card)}"
                      data-choose="${cardName(node, card)}"
                      >Device ${node.index[card]}</a
                    ><span>${stateWords(node, card)}${heldWords(node, card)}</span>
                  </li>`,
              )}
            </ul>`
        : ""
    }`;
}

function heldWords(node, card) {
  const shares = node.start[card + 1] - node.start[card];
  return shares ? `, ${percent(Math.min(1, granted(node, card)))} · ${many(shares, "share")}` : "";
}

function notes(node, card, more = null) {
  const found = [];
  const bits = card === WHOLE ? (node.ready ? 0 : UNREADY) : node.state[card];
  if (bits & UNREADY) found.push(["bad", "broken", unready(more)]);
  if (bits & ABSENT) found.push(["bad", "broken", "No longer reported by the node's agent"]);
  if (bits & FAILED)
    found.push(["bad", "broken", node.notes[card] || "Failed, no reason reported"]);
  if (node.cordons[card]) found.push(["warn", "warning", `Cordoned: ${node.cordons[card]}`]);
  if (node.cordon) found.push(["warn", "warning", `Node cordoned: ${node.cordon}`]);
  return found.map(
    ([look, icon, words]) => html`<p class="note ${look}">${ICONS[icon]}<span>${words}</span></p>`,
  );
}

/** Why the node is not ready, if known. */
function unready(more) {
  const silent = instant(more?.node.silent);
  return silent === null
    ? "Node not ready"
    : `Node not ready: agent not reporting (detected at ${when(silent, shownTime())})`;
}

function bars(node, card) {
  const parts = [];
  for (let at = node.start[card]; at < node.start[card + 1]; at += 1) {
    const share = node.memory[at] || 0.01;
    const inner = node.used[at] >= 0 ? node.used[at] / share : node.running[at];
    parts.push(
      html`<i class="g" data-s="width:${Math.min(100, share * 100)}%"
        ><i data-s="width:${Math.min(100, inner * 100)}%"></i
      ></i>`,
    );
  }
  return parts;
}

function holders(node, card, mib, more) {
  const rows = [];
  for (
    let at = node.start[card];
    at < node.start[card + 1] && rows.length < HOLDERS_SHOWN;
    at += 1
  ) {
    const pod = node.pods[node.holder[at]];
    const since = more?.since.get(`${pod.namespace}/${pod.name}`);
    const seconds = since === undefined ? null : between(since, shownTime());
    const name =
      more || !isTold(pod.name)
        ? podName(pod.namespace, pod.name)
        : html`<span class="m"><span class="ns">${pod.namespace}/</span>${pod.name}</span>`;
    rows.push(
      html`<li>
        ${name}<span
          >${num(mib * node.memory[at])} MiB ·
          ${seconds === null ? pod.phase : duration(seconds)}</span
        >
      </li>`,
    );
  }
  const left = node.start[card + 1] - node.start[card] - rows.length;
  if (!rows.length) return node.state[card] ? "" : html`<p class="faint">No pods</p>`;
  return html`<ul class="holders">
    ${rows}${left > 0 ? html`<li class="faint">and ${num(left)} more</li>` : ""}
  </ul>`;
}

/** Load the details for the panel: the node, the device, the age of its allocations and the events. */
export async function ask(node, card) {
  const whole = card === WHOLE;
  const [detail, placements, ofNode] = await Promise.all([
    get(`nodes/${path(node.name)}`),
    whole ? null : get("placements", { node: node.name, limit: 1000 }),
    story("nodes", node.name),
  ]);
  if (whole) return { node: detail.node, story: ofNode };
  const device = detail.devices.find(each => each.index === node.index[card]) ?? null;
  const since = new Map(
    placements.items.map(item => [`${item.namespace}/${item.name}`, item.placed_time]),
  );
  const own = device ? await story("devices", device.device) : [];
  return {
    device,
    since,
    node: detail.node,
    story: own instanceof Problem ? own : once([...own, ...ofItsNode(ofNode)]),
  };
}

const once = items => [...new Map(items.map(item => [item.revision, item])).values()];

const ofItsNode = items =>
  items instanceof Problem ? [] : items.filter(item => OF_ITS_NODE.has(item.type));

/** The events of a node or device up to the shown moment. Only new events are requested. */
async function story(kind, name) {
  const about = `history/${kind}/${path(name)}`;
  const upto = isLive() ? Infinity : moment.revision;
  if (!stories.has(about)) stories.set(about, []);
  const known = stories.get(about);
  const last = () => known.at(-1)?.revision ?? 0;
  try {
    for (let more = last() < upto; more;) {
      const page = await get(about, { limit: 1000, continue: last() ? String(last()) : "" });
      known.push(...page.items.filter(item => item.revision > last()));
      more = Boolean(page.continue);
    }
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    return problem;
  }
  return known.filter(item => item.revision <= upto);
}

/** The panel of a device or a node. Actions come before the long lists. */
export function panel(node, card, more) {
  const targets = more
    ? [...(more.device ? [cardTarget(more.device)] : []), nodeTarget(more.node)]
    : [];
  return html`<button class="x" aria-label="Close">${ICONS.close}</button
    >${head(node, card, more)}${notes(node, card, more)}
    ${
      more
        ? html`<div class="acts">
            ${cordonButtons(targets)}${
              more.device
                ? link("whatif", "Simulate device loss", { lose: more.device.device }, "btn")
                : ""
            }${link("whatif", "Simulate node loss", { lose: node.name }, "btn")}
          </div>`
        : ""
    }
    ${amounts(node, card, more)}
    ${more ? html`${actNotes(targets)}${happened(more.story, node.name)}` : html`<p class="faint loading">Loading…</p>`}`;
}

function happened(items, name) {
  if (items instanceof Problem)
    return html`<h3>Recent events</h3>
      ${problemNote(items, "device history")}`;
  if (!items.length)
    return html`<h3>Recent events</h3>
      <p class="faint">No events</p>`;
  const newest = items.toSorted((a, b) => b.revision - a.revision).slice(0, EVENTS_SHOWN);
  return html`<h3>Recent events</h3>
    <ol class="mini">
      ${newest.map(
        item =>
          html`<li>
            <time title="${item.time}">${said(item.time)}</time
            ><span>${told(item)}</span>${receipt(item.revision)}
          </li>`,
      )}
    </ol>
    <p class="hint">${link("events", `All events for ${name}`, { q: name })}</p>`;
}

function said(time) {
  const ms = instant(time);
  if (ms === null) return "";
  const words = when(ms, shownTime(), true);
  return words.length > 5 ? words : clock(ms);
}
