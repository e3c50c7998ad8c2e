// Where the GPU-hours went: a chart of the worked hours and of each cause of lost hours, and their table. Pure.
import { stackChart, stackNotes } from "../chart.js";
import { decimal, instant, percent } from "../format.js";
import { html } from "../html.js";
import { sentenceCase } from "../typography.js";

/** Worked hours and causes, as `[field, name, colour]`, from the bottom of the chart up. */
export const CAUSES = [
  ["worked", "worked", "var(--c-used)"],
  ["idle", "idle in a share", "var(--c-granted)"],
  ["scheduler_delay", "scheduler delay", "#66CCEE"],
  ["quota", "quota", "#CCBB44"],
  ["gang_assembly", "gang assembly", "#AA3377"],
  ["topology", "topology", "#8C6BB1"],
  ["fragmentation", "fragmentation", "#228833"],
  ["draining", "draining", "#EE8866"],
  ["cordoned", "cordoned", "var(--c-cordon)"],
  ["unhealthy", "unhealthy", "var(--c-broken)"],
  ["no_demand", "no demand", "var(--c-free)"],
];
const LEAST = 1e-6;

const hoursOf = (row, field) => row[`${field}_gpu_hours`] ?? 0;

/** Add up the rows of each step, as `{times, lengths, steps}` in ms and hours. */
function inTime(lost, began) {
  const byStart = Map.groupBy(lost.steps, step => instant(step.from));
  const begins = [...byStart.keys()].sort((one, other) => one - other);
  const times = begins.map(ms => Math.max(ms, began)); // the first step may start before the ledger
  const end = instant(lost.to);
  const lengths = times.map((ms, at) => ((times[at + 1] ?? end) - ms) / 3_600_000);
  return { times, end, lengths, steps: begins.map(ms => byStart.get(ms)) };
}

/** The chart of average GPUs by cause over time, `width` pixels wide. */
export function lostChart(lost, { began, width, marks }) {
  const { times, end, lengths, steps } = inTime(lost, began);
  if (!times.length) return html`<p class="faint">No data yet</p>`;
  const series = CAUSES.map(([field, name, colour]) => ({
    name,
    colour,
    values: steps.map(
      (rows, at) => rows.reduce((sum, row) => sum + hoursOf(row, field), 0) / lengths[at],
    ),
  })).filter(each => each.values.some(value => value > LEAST));
  const line = times.map((_, at) => series.reduce((sum, each) => sum + each.values[at], 0));
  const off = times.map(() => 0);
  const label = `GPUs over time: worked, and lost by cause. The table below has the same data.`;
  return html`${stackChart({ width, times, end, series, line, off, marks, label })}${stackNotes({
    width,
    times,
    end,
    series,
    marks,
  })}`;
}

/** The table of the causes that occurred, the most hours first. */
export function lostTable({ total, currency }) {
  const whole = Math.max(LEAST, total.capacity_gpu_hours);
  const rows = CAUSES.filter(([field]) => hoursOf(total, field) > 0).toSorted(
    ([one], [other]) => hoursOf(total, other) - hoursOf(total, one),
  );
  return html`<table class="t tight">
    <thead>
      <tr>
        <th scope="col">Cause</th>
        <th scope="col" class="num">GPU-hours</th>
        <th scope="col" class="num">Share</th>
      </tr>
    </thead>
    <tbody>
      ${rows.map(
        ([field, name, colour]) =>
          html`<tr>
            <td class="name">
              <i class="nsdot" data-s="background:${colour}"></i>${sentenceCase(name)}
            </td>
            <td class="num m">${decimal(hoursOf(total, field))}</td>
            <td class="num m">${percent(hoursOf(total, field) / whole)}</td>
          </tr>`,
      )}
    </tbody>
    <tfoot>
      <tr>
        <td>Capacity</td>
        <td class="num m">${decimal(total.capacity_gpu_hours)}</td>
        <td class="num m">${percent(1)}</td>
      </tr>
      ${
        total.lost_cost === null || total.lost_cost === undefined
          ? ""
          : html`<tr class="faint">
              <td>Cost of lost hours</td>
              <td class="num m">${decimal(total.lost_cost)} ${currency}</td>
              <td></td>
            </tr>`
      }
    </tfoot>
  </table>`;
}

/** The lost part of the capacity and its main cause, as text; empty if nothing was lost. */
export function lostWords({ total }) {
  const [most] = CAUSES.slice(1).toSorted(
    ([one], [other]) => hoursOf(total, other) - hoursOf(total, one),
  );
  return total.lost_gpu_hours
    ? `${percent(total.lost_gpu_hours / total.capacity_gpu_hours)} of capacity lost, most to ${most[1]}`
    : "";
}

/** The part of the worked hours without usage reports, as text; empty if there is none. */
export const unmeasuredWords = ({ total }) =>
  total.unmeasured_gpu_hours
    ? `${percent(total.unmeasured_gpu_hours / Math.max(LEAST, total.worked_gpu_hours))} of the worked hours have no usage report, so they may have been idle.`
    : "";
