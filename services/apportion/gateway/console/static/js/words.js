// Words and links that pages share: requests and allocations as text, and links for names. Sentences about
// events always come from the gateway.
import { duration, instant, many, num } from "./format.js";
import { html } from "./html.js";
import { CORE_UNITS, NPU_UNIT, PHASES, START_JUDGED_LEAST, START_UNKNOWN } from "./vocabulary.js";
import { namespaceColour } from "./colours.js";
import { revisionWords } from "./moment.js";
import { href } from "./route.js";

const OTHERS = "another namespace"; // the gateway's name for every namespace that the user may not see
const NOT_TOLD = "-";
const NVIDIA = "nvidia";

/** The request of a pod, as in `2 × 3,000 MiB, 50 % cores` or `8 whole GPUs`. */
export function wants(asks) {
  const words = asks.map(ask => {
    const { count = 1, cores } = ask;
    if (isWhole(ask)) return wholeWords(ask);
    return `${count} × ${memoryAsked(ask)}${cores ? `, ${cores} % cores` : ""}`;
  });
  return words.join(" + ") || "no GPU";
}

/** The request of a group of pods as a heading, as in `8 whole GPUs, of H100` or `2 × GPU 3,000 MiB`. */
export function lineWords({ asks, wishes }) {
  const words = asks.map(ask => {
    const { count = 1, family, cores } = ask;
    if (isWhole(ask)) return wholeWords(ask);
    const noun = isGpu(family) ? "GPU" : family;
    return `${count} × ${noun} ${memoryAsked(ask)}${cores ? ` ${cores} % cores` : ""}`;
  });
  return [words.join(" + ") || "no GPU", ...wishes].join(", ");
}

const isGpu = (family = NVIDIA) => family === NVIDIA;

const wholeWords = ({ count = 1, family }) =>
  isGpu(family)
    ? many(count, "whole GPU")
    : `${num(count)} whole ${family} ${count === 1 ? "device" : "devices"}`;

const isWhole = ({ cores, memory_mib: mib, memory_percent: percent }) =>
  cores === 100 && mib === undefined && [undefined, 100].includes(percent);

function memoryAsked({ profile, memory_mib: mib, memory_percent: percent }) {
  if (profile) return profile;
  if (mib !== undefined) return `${num(mib)} MiB`;
  return percent !== undefined ? `${percent} % memory` : "all memory";
}

/** The display name of a phase. */
export const phaseWord = phase => PHASES[phase] ?? phase;

/**
 * The shares of a pod, as in `2 GPUs, 3,000 MiB, 50 % cores each` or `1 GPU, 9,000 MiB + 2,000 MiB`.
 * The families of the devices are in the pod's requests.
 */
export function holds(shares, asks = []) {
  if (!shares.length) return "";
  const devices = new Set(shares.map(share => share.device)).size;
  const pieces = Map.groupBy(shares, share => pieceOf(share, asks));
  const each = pieces.size === 1 && shares.length === devices;
  const said = [...pieces]
    .map(([words, { length }]) => (length === 1 || each ? words : `${length} × ${words}`))
    .join(" + ");
  const noun = isNpu(shares[0]) ? "NPU" : "GPU";
  return `${many(devices, noun)}, ${said}${each && devices > 1 ? " each" : ""}`;
}

const isNpu = ({ device }) => device.startsWith("NPU-");

/**
 * An amount of cores in the unit of the family, as in `30 %` or `24 compute units`. Without a family,
 * the device's id decides between an NVIDIA GPU and an NPU.
 */
export function coresHeld(cores, family, device = "") {
  const unit = coreUnit(family, device);
  return unit ? many(cores, unit) : `${cores} %`;
}

/** The unit in which the cores of a family are counted; empty if they are a percentage. */
export const coreUnit = (family, device = "") =>
  CORE_UNITS[family] ?? (!family && isNpu({ device }) ? NPU_UNIT : "");

/**
 * A share of a pod with these requests as text. The name of an NPU template stands for its cores.
 */
export function pieceOf({ memory_mib: mib, cores, template, device, container }, asks = []) {
  const { family = "" } = asks.find(ask => ask.container === container) ?? {};
  const noun = coreUnit(family, device) ? "" : " cores";
  const of = template || (cores ? `${coresHeld(cores, family, device)}${noun}` : "");
  return [`${num(mib)} MiB`, of].filter(Boolean).join(", ");
}

/** Whether the user may see this name; the gateway hides names of other namespaces. */
export const isTold = name => Boolean(name) && name !== NOT_TOLD;

/** A pod as a link to its page, or a placeholder if the user may not see it. */
export const podName = (namespace, name) =>
  namespace === OTHERS || !isTold(name)
    ? html`<span class="faint">a pod in ${OTHERS}</span>`
    : podLink(namespace, name);

/** A node as a link, or a dash if the user may not see it. */
export const nodeName = node =>
  isTold(node) ? nodeLink(node) : html`<span class="faint">–</span>`;

/** Seconds from a time to `now` in milliseconds; null if the time is unknown. */
export function since(time, now) {
  const ms = instant(time);
  return ms === null ? null : Math.max(0, (now - ms) / 1000);
}

/**
 * When a pending pod should start, seen from `now` in milliseconds, and how good past forecasts were; or
 * why the start is unknown. Empty if the rest of the page says it.
 */
export function startWords(start, now) {
  if (start.unknown) {
    const because = START_UNKNOWN[start.unknown];
    return because ? `start not predictable: ${because}` : "";
  }
  const { earliest, median, latest } = startSeconds(start, now);
  if (latest < 0) return `start overdue by ${duration(-latest)}`;
  const [low, high] = [duration(earliest), duration(latest)];
  let band = low === high ? `about ${low}` : `${low} to ${high}`;
  if (earliest < 1) band = `within ${high}`;
  const percent = Math.round(100 * start.probability);
  const right =
    start.judged >= START_JUDGED_LEAST
      ? ` · ${Math.round((100 * start.within) / start.judged)} % of forecasts were right`
      : "";
  return `expected ${median < 1 ? "now" : `in ${duration(median)}`} (${percent} %: ${band})${right}`;
}

/**
 * In how many seconds a known start should be, seen from `now` in milliseconds; negative if in the past. The
 * clock of the browser may be behind that of the ledger.
 */
export function startSeconds({ as_of: asOf, ...times }, now) {
  const at = Math.max(now, instant(asOf));
  const seconds = time => (instant(time) - at) / 1000;
  return {
    earliest: seconds(times.earliest),
    median: seconds(times.median),
    latest: seconds(times.latest),
  };
}

// ---- links between pages: from a name to its page, a count to its list, a revision to its event ----

/** A link to a page, with its parameters. */
export const link = (path, text, parameters = {}, classes = "") =>
  html`<a class="${classes}" href="${href(path, parameters)}">${text}</a>`;

/** A link to the page of a pod. */
export const podLink = (namespace, name) =>
  link(`pod/${namespace}/${name}`, html`<span class="ns">${namespace}/</span>${name}`, {}, "m");

/** A link to a node on the fleet page. */
export const nodeLink = node => link("fleet", node, { q: `node:${node}` }, "m");

/** A link to the event of a revision, as evidence for the text next to it. */
export const receipt = revision =>
  revision ? link("events", revisionWords(revision), { rev: String(revision) }, "rev") : "";

/** The colour of a namespace as a dot, always shown next to its name. */
export const namespaceDot = namespace =>
  html`<i class="nsdot" data-s="background:${namespaceColour(namespace)}"></i>`;

/** A count as a link to the things that it counts. */
export const countLink = (path, value, noun, parameters = {}, classes = "") =>
  link(path, `${num(value)} ${noun}`, parameters, classes);

/** The phase of a pod as a chip. */
export const phaseChip = phase => html`<span class="chip p-${phase}">${phase}</span>`;

// ---- the gateway's sentences, with their names as links ----
//
// A sentence comes as parts, and each part is text or a name.

/** The parts of a sentence. A name with a namespace is a pod, any other a node; `shown` formats text. */
export const linked = (parts, shown = text => text) =>
  html`${quoted(parts).map(part => (typeof part === "string" ? shown(part) : named(part)))}`;

/** The parts of a sentence, with quoted user input as plain text. */
export const quoted = parts => parts.map(part => (part.quoted ? part.name : part));

/** The full sentence of a row. A row without parts is plain text. */
export const told = ({ parts, clauses, sentence }) =>
  parts.length ? html`${linked(parts)}${clauses.join("; ")}` : sentence;

/** The pod that a row is about, as namespace and name, or undefined. */
export const podOf = ({ own, parts }) =>
  own ? parts.find(part => part.namespace !== undefined) : undefined;

/** The first node in a row, or an empty string. */
export const nodeOf = ({ parts }) =>
  parts.find(part => part.name && part.namespace === undefined && !part.quoted)?.name ?? "";

const named = ({ namespace, name }) =>
  namespace === undefined ? nodeName(name) : podName(namespace, name);
