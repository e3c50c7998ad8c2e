// Numbers, times and names as people read them. Pure: a test runs this module by itself.

const two = number => String(number).padStart(2, "0");

/** 1,234: whole numbers with separators. */
export const num = value => Math.round(value).toLocaleString("en-US");

/**
 * 1,234.50: hours and money, with as many digits wherever they stand; more for the very small, as
 * reports of the command line.
 */
export function decimal(value) {
  const digits = value >= 0.01 || !value ? 2 : 4;
  return value.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

/** 61 %, <1 %: the sign never goes to another line. */
export function percent(part) {
  if (!Number.isFinite(part)) return "–";
  return part > 0 && part < 0.01 ? "<1\u00A0%" : `${Math.round(part * 100)}\u00A0%`;
}

/** 1 pod, 2 pods. */
export const many = (count, noun) => `${num(count)} ${noun}${count === 1 ? "" : "s"}`;

/** 14:20:07 of a time in milliseconds, in the reader's zone; without seconds where `short`. */
export function clock(ms, short = false) {
  const date = new Date(ms);
  const said = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return short ? said : `${said}:${two(date.getSeconds())}`;
}

/** 2026-11-20 of a time in milliseconds. */
export function day(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** The clock, with the day before it where that is not the day of `beside`. */
export const when = (ms, beside = Date.now(), short = false) =>
  (day(ms) === day(beside) ? "" : `${day(ms).slice(5)} `) + clock(ms, short);

/** 0.2 s, 8 s, 4 min 09 s, 3 h 07 min, 2 d 4 h. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
}

/**
 * How far a score is behind the best, as whoever subtracts what is shown of both: −0.1, −<0.1 where
 * only digits differ that
 * are not shown, and a tie where none does.
 */
export function behindWords(best, score) {
  const shown = Number(best.toFixed(1)) - Number(score.toFixed(1));
  if (Math.abs(shown) > 0.05) return `${shown > 0 ? "−" : "+"}${Math.abs(shown).toFixed(1)}`;
  if (best === score) return "tie";
  return `${best > score ? "−" : "+"}<0.1`;
}

/** Milliseconds of what an event says about its time; null where it says nothing. */
export function instant(text) {
  const ms = Date.parse(text ?? "");
  return Number.isNaN(ms) ? null : ms;
}

/** Seconds from one time to another, both as events say them; null where either is silent. */
export function between(from, to) {
  const [a, b] = [instant(from), typeof to === "number" ? to : instant(to)];
  return a === null || b === null ? null : (b - a) / 1000;
}

/** Order of names with numbers in them: node-2 before node-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

/** A device id cut to what tells it apart on a screen, as the command line cuts it. */
export const shortId = id => (id.length > 16 ? id.slice(0, 12) : id);

/** A name cut in its middle: names of one cluster begin alike, and their ends tell them apart. */
export function midCut(text, most) {
  if (text.length <= most) return text;
  const end = Math.ceil((most - 1) * 0.6);
  return `${text.slice(0, most - 1 - end)}…${text.slice(text.length - end)}`;
}

/** A subject as people read it: the parts of a name that it has in percent-encoding are as in the name. */
export const subjectWords = subject =>
  subject.replace(/^apportion\.v1\./, "").replace(/(%[0-9A-F]{2})+/g, decoded);

/** Percent-encoding as text; what is none stays. */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** NVIDIA H100 80GB HBM3 as H100 80GB: the maker and the kind of memory tell nothing apart here. */
export const shortModel = model =>
  model
    .replace(/\b(NVIDIA|Tesla|Huawei)[\s-]+/gi, "")
    .replace(/[\s-]+(HBM\w*|SXM\d?|PCIe)\b/gi, "")
    .replace(/-(?=\d+GB)/g, " ");

/** A pool as people say it: 8 × H100 80GB, by the cards of each node; a name of its own stays. */
export const poolWords = ({ name, hardware }) =>
  hardware.length
    ? hardware
        .map(({ count, model, mode }) => `${count} × ${shortModel(model)}${mode && ` ${mode}`}`)
        .join(" + ")
    : name;

/** How much of a pool there is: 2 nodes, 16 cards. */
export const poolCounts = ({ nodes, cards }) =>
  `${many(nodes.length, "node")}, ${many(cards, "card")}`;

/**
 * A pool and how much of it there is, on one line: a name of hardware is that of one node, so it is said of how many.
 * 2 nodes of 8 × H100 80GB, 16 cards; train-h100, 2 nodes, 16 cards.
 */
export function poolHeading(pool) {
  const words = poolWords(pool);
  if (!pool.hardware.length) return `${words}, ${poolCounts(pool)}`;
  return `${many(pool.nodes.length, "node")} of ${words}, ${many(pool.cards, "card")}`;
}
