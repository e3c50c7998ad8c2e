// A stacked area chart over time as SVG, with a capacity line and the unusable capacity above it. Pure.
//
// The table next to a chart has the same figures, and the label of the SVG says so for screen readers.
import { clock, day, midCut, num, when } from "./format.js";
import { html } from "./html.js";
import { LOOKS } from "./marks.js";

const AXIS_FOOT = 22;
const AXIS_HEAD = 18;
const LEFT = 40;
const LABELS = 126;
const LABEL_HEIGHT = 13;
const LABEL_LETTERS = 15;
const MARK_LETTER = 6.6;
const MORE_LETTERS = 9; // of the count of further marks, as in " +12 more"
const MARK_GAP = 4; // between the label of a mark and its line
const MARK_FOOT = 15; // below the labels
const LINE_ROOM = 12;
const TIME_ROOM = 90;
const NARROW = 500; // below this width, names and labels are not in the drawing
const MARKS_TOLD = 4;

const short = value =>
  value >= 1000
    ? `${Math.round(value / 100) / 10}k`
    : value < 10 && value % 1
      ? value.toFixed(1)
      : num(value);

/**
 * The chart. `times` are the starts of the steps in ms, and `end` is the end of the last. `series` are
 * `{name, colour, values}` from the bottom up. `line` and `off` have a value per step: the usable capacity,
 * and the unusable one above it. `marks` are `{ms, kind, words, look}`.
 */
export function stackChart({ width, times, end, series, line, off, marks, label }) {
  const height = width < NARROW ? 190 : 236;
  const right = width < NARROW ? 8 : LABELS;
  const all = line.map((value, at) => value + off[at]);
  const highest = Math.max(
    1e-9,
    ...all,
    ...times.map((_, at) => series.reduce((sum, each) => sum + each.values[at], 0)),
  );
  const grid = numberTicks(highest);
  const top = grid.at(-1);
  const x = ms => LEFT + ((ms - times[0]) / Math.max(1, end - times[0])) * (width - LEFT - right);
  const y = value => height - AXIS_FOOT - (value / top) * (height - AXIS_FOOT - AXIS_HEAD);
  const inside = marks.filter(mark => mark.ms > times[0] && mark.ms < end);
  const words = width < NARROW ? [] : named(inside, x);
  const ticks = timeTicks(times[0], end, (width - LEFT - right) / TIME_ROOM).filter(
    ({ ms }) => x(ms) < width - TIME_ROOM / 4,
  );
  return html`<svg
    width="${width}"
    height="${height}"
    viewBox="0 0 ${width} ${height}"
    role="img"
    aria-label="${label}"
  >
    ${grid.map(
      value =>
        html`<line
            class="gl"
            x1="${LEFT}"
            x2="${width - right}"
            y1="${y(value)}"
            y2="${y(value)}"
          /><text class="ax" x="${LEFT - 6}" y="${y(value) + 3}" text-anchor="end"
            >${short(value)}</text
          >`,
    )}
    ${areas(series, times, end, { x, y })}
    <path class="area off" d="${band(line, all, times, end, { x, y })}" />
    <path class="cap" d="${steps(line, times, end, { x, y })}" />
    ${apart(inside, x, LINE_ROOM).map(
      mark =>
        html`<line
          class="mkl k-${mark.look}"
          x1="${x(mark.ms)}"
          x2="${x(mark.ms)}"
          y1="${words.some(each => each.left <= x(mark.ms) && x(mark.ms) <= each.right) ? MARK_FOOT : 4}"
          y2="${height - AXIS_FOOT}"
          ><title>${when(mark.ms)} ${mark.words}</title></line
        >`,
    )}
    ${words.map(
      each =>
        html`<text
          class="ax mkw k-${each.mark.look}"
          x="${each.before ? each.right : each.left}"
          y="11"
          text-anchor="${each.before ? "end" : "start"}"
          >${markWords(each)}${each.of.length > 1 ? html`<title>${sayings(each.of)}</title>` : ""}</text
        >`,
    )}
    ${beginning(ticks, { from: times[0], end, x, foot: height - 6 })}
    ${ticks.map(tick => timeTick(tick, x(tick.ms), height))}
    ${right > 40 ? labels(series, times.length - 1, { y, x: width - right + 8, foot: height - AXIS_FOOT }) : ""}
  </svg>`;
}

const timeTick = ({ words }, x, height) =>
  html`<line
      class="gl"
      x1="${x}"
      x2="${x}"
      y1="${height - AXIS_FOOT}"
      y2="${height - AXIS_FOOT + 4}"
    /><text class="ax" x="${x}" y="${height - 6}" text-anchor="middle">${words}</text>`;

/** The start time of the axis, unless a tick is near it. */
function beginning(/** @type {any[]} */ [tick], { from, end, x, foot }) {
  if (tick && x(tick.ms) - LEFT < TIME_ROOM) return "";
  return html`<text class="ax" x="${LEFT}" y="${foot}" text-anchor="start"
    >${when(from, end, true)}</text
  >`;
}

/** The legend and the list of marks below a narrow chart, which has no room for labels. */
export function stackNotes({ width, times, end, series, marks }) {
  if (width >= NARROW) return "";
  const inside = byWeight(marks.filter(mark => mark.ms > times[0] && mark.ms < end));
  const told = inside.slice(0, MARKS_TOLD).toSorted((one, other) => one.ms - other.ms);
  return html`<div class="legend foot">
      ${series.map(each => html`<span><i class="sw" data-s="background:${each.colour}"></i>${each.name}</span>`)}
    </div>
    ${
      told.length
        ? html`<ul class="mini">
            ${told.map(
              mark =>
                html`<li><time>${when(mark.ms, end, true)}</time><span>${mark.words}</span></li>`,
            )}${
              inside.length > told.length
                ? html`<li class="faint">
                    <span
                      >and ${num(inside.length - told.length)} more
                      ${inside.length - told.length === 1 ? "mark" : "marks"}</span
                    >
                  </li>`
                : ""
            }
          </ul>`
        : ""
    }`;
}

/** Marks by importance: failures, then operators' actions; the newest first within a kind. */
const byWeight = marks =>
  marks.toSorted(
    (one, other) => LOOKS.indexOf(one.look) - LOOKS.indexOf(other.look) || other.ms - one.ms,
  );

/** The most important marks that are at least `room` apart. */
function apart(marks, x, room) {
  const found = [];
  for (const mark of byWeight(marks)) {
    if (found.every(each => Math.abs(x(each.ms) - x(mark.ms)) > room)) found.push(mark);
  }
  return found;
}

/**
 * Labels of marks that do not overlap, each left of its line, or right of it at the edge. A mark without a
 * label of its own is counted by the nearest label.
 */
function named(marks, x) {
  const found = [];
  for (const mark of byWeight(marks)) {
    const wide = MARK_LETTER * (mark.kind.length + (marks.length > 1 ? MORE_LETTERS : 0));
    const before = x(mark.ms) - MARK_GAP - wide >= LEFT;
    const left = x(mark.ms) + (before ? -MARK_GAP - wide : MARK_GAP);
    const free = found.every(
      each => left + wide < each.left - MARK_GAP || left > each.right + MARK_GAP,
    );
    if (free) found.push({ mark, before, left, right: left + wide, of: [mark] });
  }
  for (const mark of marks) {
    if (found.some(each => each.mark === mark)) continue;
    const far = each => Math.abs(each.mark.ms - mark.ms);
    found.reduce((near, each) => (far(each) < far(near) ? each : near)).of.push(mark);
  }
  return found;
}

/** The kind of a mark, and the count of further marks at its label. */
const markWords = ({ mark, of }) =>
  of.length > 1 ? `${mark.kind} +${num(of.length - 1)} more` : mark.kind;

/** The sentences of several marks, in order of time. */
const sayings = marks =>
  marks
    .toSorted((one, other) => one.ms - other.ms)
    .map(mark => `${when(mark.ms)} ${mark.words}`)
    .join("\n");

/** The areas of all series, stacked. */
function areas(series, times, end, { x, y }) {
  const foot = new Array(times.length).fill(0);
  return series.map(each => {
    const low = [...foot];
    each.values.forEach((value, at) => {
      foot[at] += value;
    });
    return html`<path
      class="area"
      fill="${each.colour}"
      d="${band(low, foot, times, end, { x, y })}"
      ><title>${each.name}</title></path
    >`;
  });
}

/** The path of the area between two lines. */
const band = (low, high, times, end, to) =>
  `${steps(high, times, end, to)}L${steps(low, times, end, to).slice(1).split("L").reverse().join("L")}Z`;

/** The path of a step line. */
function steps(values, times, end, { x, y }) {
  const points = values.flatMap((value, at) => [
    [times[at], value],
    [times[at + 1] ?? end, value],
  ]);
  return `M${points.map(([ms, value]) => `${x(ms).toFixed(1)},${y(value).toFixed(1)}`).join("L")}`;
}

/** Series names at the right of the chart, shifted so that they neither overlap nor leave it. */
function labels(series, last, { y, x, foot }) {
  let sum = 0;
  const places = series.map(each => {
    sum += each.values[last];
    return { ...each, at: y(sum - each.values[last] / 2) + 4 };
  });
  let room = foot;
  for (const place of places) {
    place.at = Math.min(place.at, room);
    room = place.at - LABEL_HEIGHT;
  }
  let least = LABEL_HEIGHT;
  for (const place of places.toReversed()) {
    place.at = Math.max(place.at, least);
    least = place.at + LABEL_HEIGHT;
  }
  return places.map(
    place =>
      html`<rect
          x="${x}"
          y="${place.at - 9}"
          width="8"
          height="8"
          rx="1"
          fill="${place.colour}"
        /><text class="lb" x="${x + 13}" y="${place.at - 1}"
          >${midCut(place.name, LABEL_LETTERS)}</text
        >`,
  );
}

// ---- axis ticks at round numbers and times ----

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

/** Ticks from 0 to at least `value`, in at most five steps of 1, 2 or 5 times a power of ten. */
export function numberTicks(value) {
  const wanted = Math.max(STEP_LEAST, value / PARTS_MOST);
  const power = 10 ** Math.floor(Math.log10(wanted) + 1e-9);
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= wanted * (1 - 1e-9));
  const parts = Math.max(1, Math.ceil(value / step - 1e-9));
  return Array.from({ length: parts + 1 }, (_, at) => Number((at * step).toFixed(1)));
}

/** At most `most` round local times in a period, as `{ms, words}`; midnight is labelled with its date. */
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
