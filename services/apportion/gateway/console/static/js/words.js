// Words and links that pages share: what a pod wants and holds, and where a name leads. What happened
// is always said by the gateway.
import { instant, many, num } from "./format.js";
import { html } from "./html.js";
import { PHASES } from "./vocabulary.js";
import { namespaceColour } from "./colours.js";
import { revisionWords } from "./moment.js";
import { href } from "./route.js";

const OTHERS = "another namespace"; // as the gateway calls all that the reader may not see
const NOT_TOLD = "-";

/** What a pod asks for, as in `2 × 3,000 MiB, 50 % cores` or `8 whole cards`. */
export function wants(asks) {
  const words = asks.map(ask => {
    const { count = 1, cores } = ask;
    if (isWhole(ask)) return `${count} whole ${count === 1 ? "card" : "cards"}`;
    return `${count} × ${memoryAsked(ask)}${cores ? `, ${cores} % cores` : ""}`;
  });
  return words.join(" + ") || "no card";
}

/** What a line of pods asks for, as a heading: `8 × nvidia, whole, of H100`. */
export function lineWords({ asks, wishes }) {
  const words = asks.map(ask => {
    const { count = 1, family, cores } = ask;
    if (isWhole(ask)) return `${count} × ${family}, whole`;
    return `${count} × ${family} ${memoryAsked(ask)}${cores ? ` ${cores} % cores` : ""}`;
  });
  return [words.join(" + ") || "no device", ...wishes].join(", ");
}

const isWhole = ({ cores, memory_mib: mib, memory_percent: percent }) =>
  cores === 100 && mib === undefined && [undefined, 100].includes(percent);

function memoryAsked({ profile, memory_mib: mib, memory_percent: percent }) {
  if (profile) return profile;
  if (mib !== undefined) return `${num(mib)} MiB`;
  return percent !== undefined ? `${percent} % memory` : "all memory";
}

/** A phase as people say it: a pod that has no place yet waits, whether somebody has looked or not. */
export const phaseWord = phase => PHASES[phase] ?? phase;

/** What a pod holds, as in `2 cards, 3,000 MiB, 50 % cores each` or `1 card, 10,000 MiB, 50 % cores + 2,000 MiB`. */
export function holds(shares) {
  if (!shares.length) return "";
  const devices = new Set(shares.map(share => share.device)).size;
  const pieces = Map.groupBy(shares, piece);
  const each = pieces.size === 1 && shares.length === devices;
  const said = [...pieces]
    .map(([words, { length }]) => (length === 1 || each ? words : `${length} × ${words}`))
    .join(" + ");
  return `${many(devices, "card")}, ${said}${each && devices > 1 ? " each" : ""}`;
}

/** As in `30 %`; of an NPU, by whose id one is known, the cores are counted. */
export const coresHeld = ({ device, cores }) =>
  device.startsWith("NPU-") ? num(cores) : `${cores} %`;

/** One share: cores of a template are not percent, and its name says both. */
function piece(share) {
  const { memory_mib: mib, cores, template } = share;
  const of = template || (cores ? `${coresHeld(share)} cores` : "");
  return [`${num(mib)} MiB`, of].filter(Boolean).join(", ");
}

/** Whether a name is told to this reader: of pods of others there is none. */
export const isTold = name => Boolean(name) && name !== NOT_TOLD;

/** A pod as a link to its page; one of a namespace that the reader may not see has neither name nor page. */
export const podName = (namespace, name) =>
  namespace === OTHERS || !isTold(name)
    ? html`<span class="faint">a pod of ${OTHERS}</span>`
    : podLink(namespace, name);

/** A node as a link, where it is told. */
export const nodeName = node =>
  isTold(node) ? nodeLink(node) : html`<span class="faint">–</span>`;

/** Seconds since a time, at the moment that is shown; null where nobody said when. */
export function since(time, now) {
  const ms = instant(time);
  return ms === null ? null : Math.max(0, (now - ms) / 1000);
}

// ---- links between the pages: a name leads to its story, a count to its list, a revision to its event ----

/** A link to a page, with its parameters. */
export const link = (path, text, parameters = {}, classes = "") =>
  html`<a class="${classes}" href="${href(path, parameters)}">${text}</a>`;

/** A pod by its name, which leads to its story. */
export const podLink = (namespace, name) =>
  link(`pod/${namespace}/${name}`, html`<span class="ns">${namespace}/</span>${name}`, {}, "m");

/** A node by its name, which leads to its cards. */
export const nodeLink = node => link("fleet", node, { q: `node:${node}` }, "m");

/** A revision, which leads to its event: the receipt of what stands beside it. */
export const receipt = revision =>
  revision ? link("events", revisionWords(revision), { rev: String(revision) }, "rev") : "";

/** The namespace's colour as a dot; its name always stands beside it. */
export const namespaceDot = namespace =>
  html`<i class="nsdot" data-s="background:${namespaceColour(namespace)}"></i>`;

/** A count that leads to what it counts. */
export const countLink = (path, value, noun, parameters = {}, classes = "") =>
  link(path, `${num(value)} ${noun}`, parameters, classes);

/** The phase of a pod. */
export const phaseChip = phase => html`<span class="chip p-${phase}">${phase}</span>`;

// ---- the gateway's sentences with the names in them as links ----
//
// A row and an answer say which of their parts are names: what is none stays text.

/**
 * The parts of a sentence: a name with a namespace is that of a pod, another that of a node;
 * `shown` makes a text look.
 */
export const linked = (parts, shown = text => text) =>
  html`${quoted(parts).map(part => (typeof part === "string" ? shown(part) : named(part)))}`;

/** The parts of a sentence in which what people wrote is text as well. */
export const quoted = parts => parts.map(part => (part.quoted ? part.name : part));

/** All that a row says; what was not told, or not read, has no parts. */
export const told = ({ parts, clauses, sentence }) =>
  parts.length ? html`${linked(parts)}${clauses.join("; ")}` : sentence;

/** The pod that a row is about, as namespace and name; nothing where it is about none. */
export const podOf = ({ own, parts }) =>
  own ? parts.find(part => part.namespace !== undefined) : undefined;

/** The node that a row names first; empty where it names none. */
export const nodeOf = ({ parts }) =>
  parts.find(part => part.name && part.namespace === undefined && !part.quoted)?.name ?? "";

const named = ({ namespace, name }) =>
  namespace === undefined ? nodeName(name) : podName(namespace, name);
