// Where an axis is marked: at numbers and times that people would have chosen. Pure.
import { clock, day } from "./format.js";

const PARTS_MOST = 5;
const STEP_LEAST = 0.1;
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const TIME_STEPS = [
  5000,
  10_000,
  15_000,
  30_000,
  MINUTE,
  2 * MINUTE,
  5 * MINUTE,
  10 * MINUTE,
  15 * MINUTE,
  30 * MINUTE,
  HOUR,
  2 * HOUR,
  3 * HOUR,
  6 * HOUR,
  12 * HOUR,
  DAY,
  2 * DAY,
  7 * DAY,
  14 * DAY,
  28 * DAY,
];

/** From 0 to at least `value` in at most five steps of 1, 2 or 5 times a power of ten. */
export function numberTicks(value) {
  const wanted = Math.max(STEP_LEAST, value / PARTS_MOST);
  const power = 10 ** Math.floor(Math.log10(wanted) + 1e-9);
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= wanted * (1 - 1e-9));
  const parts = Math.max(1, Math.ceil(value / step - 1e-9));
  return Array.from({ length: parts + 1 }, (_, at) => Number((at * step).toFixed(1)));
}

/** At most `most` round times between two, in the reader's zone: `{ms, words}`; a midnight is its day. */
export function timeTicks(from, to, most) {
  const step = TIME_STEPS.find(each => (to - from) / each <= most) ?? TIME_STEPS.at(-1);
  const zone = new Date(from).getTimezoneOffset() * MINUTE;
  const ticks = [];
  for (let ms = Math.ceil((from - zone) / step) * step + zone; ms <= to; ms += step) {
    const midnight = (ms - zone) % DAY === 0;
    ticks.push({ ms, words: midnight ? day(ms).slice(5) : clock(ms, step >= MINUTE) });
  }
  return ticks;
}
