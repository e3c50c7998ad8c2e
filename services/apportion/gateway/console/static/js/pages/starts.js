// When pending pods should start: a band for each request on one axis of time, and how good forecasts were. Pure.
//
// The axis begins now and is logarithmic, so that minutes and days are both visible; its ticks say so.
import { instant, when } from "../format.js";
import { html } from "../html.js";
import { startSeconds, startWords } from "../words.js";
import { START_JUDGED_LEAST, START_UNKNOWN } from "../vocabulary.js";

const MINUTE_S = 60;
const END_LEAST_S = 300;
const ROOM = 0.2; // between ticks, as a part of the axis
const LAST = 0.92; // a later tick would not fit
const TICKS = [
  [300, "5 min"],
  [900, "15 min"],
  [3_600, "1 h"],
  [10_800, "3 h"],
  [43_200, "12 h"],
  [86_400, "1 d"],
  [259_200, "3 d"],
  [604_800, "7 d"],
  [2_592_000, "30 d"],
];

const isKnown = start => Boolean(start) && !start.unknown;

/**
 * The axis for these forecasts, seen from `now` in milliseconds; null if none was made. `shared` is the cause if
 * all starts are unknown for one cause, which the note then says once.
 */
export function startAxis(starts, now) {
  if (!starts.some(Boolean)) return null;
  const ends = starts.filter(isKnown).map(start => startSeconds(start, now).latest);
  const end = Math.max(END_LEAST_S, ...ends);
  const at = seconds =>
    Math.max(0, Math.log2(1 + Math.max(0, seconds) / MINUTE_S) / Math.log2(1 + end / MINUTE_S));
  const ticks = [];
  for (const [seconds, words] of ends.length ? TICKS.toReversed() : []) {
    const next = ticks.length ? ticks[0].at - ROOM : LAST;
    if (at(seconds) <= next && at(seconds) >= ROOM) ticks.unshift({ at: at(seconds), words });
  }
  const causes = new Set(starts.filter(Boolean).map(start => START_UNKNOWN[start.unknown] ?? ""));
  causes.delete("");
  const [shared = ""] = ends.length || causes.size > 1 ? [] : causes;
  return { now, at, ticks, known: ends.length > 0, shared };
}

const part = value => `${(100 * value).toFixed(2)}%`;

/** The ticks of the axis, as the first row of the list; empty if no start is known. */
export const axisRow = axis =>
  axis?.known
    ? html`<div class="line-h line-axis" aria-hidden="true">
        <span>Expected start</span>
        <svg class="line-s" height="14">
          <text class="ax" x="0" y="11">now</text>
          ${axis.ticks.map(
            tick =>
              html`<text class="ax" x="${part(tick.at)}" y="11" text-anchor="middle"
                >${tick.words}</text
              >`,
          )}
        </svg>
      </div>`
    : "";

/** The forecast of one request: its band as text and as a bar, or why the start is unknown. */
export function startCell(start, axis) {
  if (!axis) return "";
  if (!start) return html`<span class="line-s faint">–</span>`;
  if (start.unknown) {
    const because = START_UNKNOWN[start.unknown];
    if (!because) return html`<span class="line-s faint">–</span>`;
    return html`<span class="line-s" title="${because}"
      >Start unknown${axis.shared ? "" : html`<small>${because}</small>`}</span
    >`;
  }
  const said = startWords(start, axis.now);
  const { earliest, median, latest } = startSeconds(start, axis.now);
  if (latest < 0) return html`<span class="line-s c-warn" title="${said}">Start overdue</span>`;
  return html`<span class="line-s" title="${said}"
    ><span
      >${bandTimes(start, axis.now)},
      <span class="faint">${Math.round(100 * start.probability)} %</span
      ><span class="unseen"
        >, most likely ${when(instant(start.median), axis.now, true)}</span
      ></span
    >${bar(axis, earliest, median, latest)}</span
  >`;
}

function bar(axis, earliest, median, latest) {
  const [from, to] = [axis.at(earliest), axis.at(latest)];
  return html`<svg class="band" height="10" aria-hidden="true">
    <line class="gl" x1="0" x2="100%" y1="5" y2="5" />
    ${axis.ticks.map(
      tick => html`<line class="gl" x1="${part(tick.at)}" x2="${part(tick.at)}" y1="0" y2="10" />`,
    )}
    <rect x="${part(from)}" width="${part(Math.max(to - from, 0.01))}" y="1" height="8" rx="2" />
    <line class="mid" x1="${part(axis.at(median))}" x2="${part(axis.at(median))}" y1="0" y2="10" />
  </svg>`;
}

/** The band as local times: `14:20 – 16:05`, `now – 16:05`, or `about 14:20`; a day only if it is another. */
function bandTimes(start, now) {
  const [from, to] = [instant(start.earliest), instant(start.latest)];
  const high = when(to, from > now ? from : now, true);
  if (from <= now) return `now – ${high}`;
  const low = when(from, now, true);
  return when(to, now, true) === low ? `about ${low}` : `${low} – ${high}`;
}

/** What the bands mean, and how many of the past ones held; empty without an axis. */
export function startNote(starts, axis) {
  const [first] = starts.filter(Boolean);
  if (!axis || !first) return "";
  const { judged, within } = first; // equal in all forecasts of an answer
  const known = starts.find(isKnown);
  const held =
    judged >= START_JUDGED_LEAST
      ? `${Math.round((100 * within) / judged)} % of the last ${judged} forecasts were right.`
      : `The percentage of right forecasts is shown from ${START_JUDGED_LEAST} on (so far ${judged}).`;
  return html`<p class="faint foot">
    ${
      known
        ? `With a probability of ${Math.round(100 * known.probability)} %, the first pod of a request starts within its bar; the line in it is the median.`
        : axis.shared && `Start unknown: ${axis.shared}.`
    }
    ${held}
  </p>`;
}
