// Formats for numbers, times and names. Pure: tests run this module on its own.

const two = number => String(number).padStart(2, "0");

/** A whole number with separators: 1,234; a dash for one that the answer hides (null). */
export const num = value => (value === null ? "–" : Math.round(value).toLocaleString("en-US"));

/** Hours or money with two digits, as in 1,234.50; four below 0.01, as in the reports of the CLI. */
export function decimal(value) {
  const digits = value >= 0.01 || !value ? 2 : 4;
  return value.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

/** A share of 1 in percent, as in 61 % or <1 %, with a no-break space. */
export function percent(part) {
  if (!Number.isFinite(part)) return "–";
  return part > 0 && part < 0.01 ? "<1\u00A0%" : `${Math.round(part * 100)}\u00A0%`;
}

/** Time ranges to choose from: name, label and seconds. */
export const SPANS = [
  ["1h", "1 h", 3_600],
  ["6h", "6 h", 21_600],
  ["1d", "1 d", 86_400],
  ["7d", "7 d", 604_800],
];

/** A count with its noun: 1 pod, 2 pods. */
export const many = (count, noun) => `${num(count)} ${noun}${count === 1 ? "" : "s"}`;

/** The local time of a timestamp in milliseconds: 14:20:07, or 14:20 if `short`. */
export function clock(ms, short = false) {
  const date = new Date(ms);
  const said = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return short ? said : `${said}:${two(date.getSeconds())}`;
}

/** The local date of a timestamp in milliseconds: 2026-11-20. */
export function day(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** The local time, preceded by the day if that differs from the day of `beside`. */
export const when = (ms, beside = Date.now(), short = false) =>
  (day(ms) === day(beside) ? "" : `${day(ms).slice(5)} `) + clock(ms, short);

/** Seconds as text: 0.2 s, 8 s, 4 min 09 s, 3 h 07 min, 2 d 4 h. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

/**
 * The distance of a score to the best, computed from the rounded numbers on the page: −0.1. −<0.1 means
 * that only hidden digits differ, and a tie that none does.
 */
export function behindWords(best, score) {
  const shown = Number(best.toFixed(1)) - Number(score.toFixed(1));
  if (Math.abs(shown) > 0.05) return `${shown > 0 ? "−" : "+"}${Math.abs(shown).toFixed(1)}`;
  if (best === score) return "tie";
  return `${best > score ? "−" : "+"}<0.1`;
}

/** The time of an event in milliseconds; null if it has none. */
export function instant(text) {
  const ms = Date.parse(text ?? "");
  return Number.isNaN(ms) ? null : ms;
}

/** Seconds between two times of events; null if either is missing. */
export function between(from, to) {
  const [a, b] = [instant(from), typeof to === "number" ? to : instant(to)];
  return a === null || b === null ? null : (b - a) / 1000;
}

/** Compares names by the numbers in them: node-2 before node-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

/** A device id, shortened as in the CLI. */
export const shortId = id => (id.length > 16 ? id.slice(0, 12) : id);

/** A name shortened in the middle; names of one cluster begin alike and differ at the end. */
export function midCut(text, most) {
  if (text.length <= most) return text;
  const end = Math.ceil((most - 1) * 0.6);
  return `${text.slice(0, most - 1 - end)}…${text.slice(text.length - end)}`;
}

/** A subject without its prefix and percent-encoding. */
export const subjectWords = subject =>
  subject.replace(/^apportion\.v1\./, "").replace(/(%[0-9A-F]{2})+/g, decoded);

/** Decode percent-encoding; invalid encoding stays as it is. */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A model without its vendor and memory type: NVIDIA H100 80GB HBM3 becomes H100 80GB. */
export const shortModel = model =>
  model
    .replace(/\b(NVIDIA|Tesla|Huawei)[\s-]+/gi, "")
    .replace(/[\s-]+(HBM\w*|SXM\d?|PCIe)\b/gi, "")
    .replace(/-(?=\d+GB)/g, " ");

/** The name of a pool, or else the hardware of each of its nodes: 8 × H100 80GB. */
export const poolWords = ({ name, hardware }) =>
  hardware.length
    ? hardware
        .map(({ count, model, mode }) => `${count} × ${shortModel(model)}${mode && ` ${mode}`}`)
        .join(" + ")
    : name;

/** The size of a pool: 2 nodes, 16 GPUs. */
export const poolCounts = ({ nodes, cards }) =>
  `${many(nodes.length, "node")}, ${many(cards, "GPU")}`;

/** A pool and its size on one line: `2 nodes of 8 × H100 80GB, 16 GPUs`, or `train-h100, 2 nodes, 16 GPUs`. */
export function poolHeading(pool) {
  const words = poolWords(pool);
  if (!pool.hardware.length) return `${words}, ${poolCounts(pool)}`;
  return `${many(pool.nodes.length, "node")} of ${words}, ${many(pool.cards, "GPU")}`;
}
