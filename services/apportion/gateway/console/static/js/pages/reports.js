// Reports: GPU-hours allocated and used, their cost, idle shares, and causes of lost hours.
import { getNow, orProblem, Problem } from "../api.js";
import { stackChart, stackNotes } from "../chart.js";
import {
  meetNamespaces,
  NAMESPACE_COLOURS,
  namespaceColour,
  namespacePlace,
  OTHER,
} from "../colours.js";
import { decimal, instant, many, num, percent, SPANS, when } from "../format.js";
import { $, html, mount, renew } from "../html.js";
import { link, podName } from "../words.js";
import { me } from "../login.js";
import { LOOK_OF } from "../marks.js";
import { isLive, shownTime } from "../moment.js";
import { answer, either, problemNote, second, segments } from "../parts.js";
import { ListPage, NEWER } from "./list_page.js";
import { lostChart, lostTable, lostWords, unmeasuredWords } from "./lost_hours.js";
import { sentenceCase } from "../typography.js";

const BYS = [
  ["namespace", "Namespace"],
  ["queue", "Queue"],
  ["user", "User"],
  ["node", "Node"],
  ["model", "Model"],
  ["label", "Label"],
];
const LABEL = "label:"; // before the key of a label, as the gateway has it
const STEPS_S = [60, 120, 300, 900, 1800, 3600, 7200, 21_600, 86_400];
const STEPS_WANTED = 72;
const LEAST_MS = 2000; // so that the first second of a ledger has a report
const FOR_TENANTS = new Set(["namespace", "node", "model"]); // as the gateway allows it
const SERIES = 7;
const ROWS = 12;
const NO_PRICES = "no-prices"; // unlike an invalid price file, this does not change while the gateway runs
let unpriced = null; // the answer of a gateway without a price file, which is asked only once

/** See app.js. */
export const open = (main, context) => new ReportsPage(main, context).start();

class ReportsPage extends ListPage {
  constructor(main, context) {
    super(main, context);
    this.by = context.parameters.get("by") ?? "namespace";
    this.isNaming = false; // whether the key of a label is asked for
    this.said = context.parameters.get("span") ?? "1d";
    this.span = SPANS.some(([name]) => name === this.said) ? this.said : "1d";
  }

  async load() {
    const { by } = this; // the user may choose another before the answer arrives
    const line = await getNow("timeline", { bins: 1 });
    this.marks = line.marks;
    const end = isLive() ? Date.now() : shownTime();
    const wanted = Number(SPANS.find(([name]) => name === this.span)[2]) * 1000;
    const from = Math.max(instant(line.first_time) ?? 0, end - wanted);
    const seconds =
      STEPS_S.find(each => (end - from) / 1000 / each <= STEPS_WANTED) ?? STEPS_S.at(-1);
    const period = {
      by,
      from: iso(from, Math.ceil),
      ...(isLive() ? {} : { to: iso(Math.max(end, from + LEAST_MS), Math.floor) }),
    };
    this.period = period;
    const step = `${seconds / 60}m`;
    const [usage, idle] = await Promise.all([
      getNow("report/usage", { ...period, step }),
      orProblem(getNow("report/idle", period)),
    ]);
    const cost = unpriced ?? (await orProblem(getNow("report/cost", { ...period, to: usage.to })));
    if (cost.code === NO_PRICES) unpriced = cost;
    this.usage = usage;
    this.idle = idle;
    this.lost = null;
    this.lostOf = { ...period, to: usage.to, by: "model", step };
    this.cost = cost;
    this.revision = usage.revision;
    if (by === "namespace") meetNamespaces(usage.rows.map(row => row.key));
  }

  /** Load the lost hours, which take the longest, after the rest of the page is shown. */
  async loadLost() {
    const { lostOf } = this;
    if (this.lost || this.losing === lostOf) return;
    this.losing = lostOf;
    const lost = await orProblem(getNow("report/lost", lostOf));
    if (this.closed || this.lostOf !== lostOf) return;
    this.lost = lost; // only the card is drawn, so that the focus and the button for newer events stay
    mount($("#lost-card"), this.lostCard());
    this.drawn = 0;
    this.chart();
  }

  /** The key of the label that the report is by; empty for another report. */
  label() {
    return this.by.startsWith(LABEL) ? this.by.slice(LABEL.length) : "";
  }

  /** What the report is by, as in `label team`. */
  byWords() {
    return this.label() ? `label ${this.label()}` : this.by;
  }

  /** The choice of what the report is by; with Label, a field for its key. */
  choices() {
    const isLabel = this.isNaming || Boolean(this.label());
    const bys = me.all ? BYS : BYS.filter(([by]) => FOR_TENANTS.has(by));
    return html`${segments("span", "Period", SPANS, this.span)}${segments(
      "by",
      "Group by",
      bys,
      isLabel ? "label" : this.by,
    )}${
      isLabel
        ? html`<input
            id="label"
            class="pick"
            placeholder="Key, such as team ↵"
            aria-label="Label key"
            autocomplete="off"
            spellcheck="false"
          />`
        : ""
    }`;
  }

  draw() {
    const { usage } = this;
    const { total } = usage;
    const began = when(this.began(), shownTime(), true);
    const sentence = total.allocated_gpu_hours
      ? html`${decimal(total.allocated_gpu_hours)} GPU-hours since ${began}
        (${percent(total.allocated_gpu_hours / Math.max(1e-9, total.capacity_gpu_hours))} of
        capacity)${
          total.reported_gpu_hours
            ? html` · ${percent(total.used_gpu_hours / total.reported_gpu_hours)} used`
            : ""
        }`
      : html`No GPU-hours since ${began}`;
    const money = this.cost?.total?.cost;
    renew(
      this.main,
      html`<div class="page">
        ${answer(sentence, [
          this.span === this.said
            ? ""
            : html`<span class="c-warn"
                >Unknown span “${this.said}”. Use ${either(SPANS.map(([name]) => name))}; showing
                ${this.span}</span
              >`,
          money === undefined || money === null
            ? ""
            : `${amount(money, this.cost.currency)} at list price`,
          total.reported_gpu_hours ? "" : "no utilization data yet",
          this.idle?.found
            ? html`<span class="c-warn">${many(this.idle.found, "idle share")}</span>`
            : "",
          NEWER,
        ])}
        <section class="card">
          <div class="ch-h">
            <h2>
              GPUs by ${this.byWords()}
              <small>${stepWords(usage.step_s)} averages · line: usable capacity</small>
            </h2>
            <div class="acts">${this.choices()}</div>
          </div>
          <div class="chart" id="chart"></div>
          ${this.offWords()}
        </section>
        <div class="cols rep">${this.rows()}${this.idleCard()}</div>
        <div id="lost-card">${this.lostCard()}</div>
      </div>`,
    );
    this.field();
    this.drawn = 0;
    this.chart();
    this.sizes?.disconnect();
    this.sizes = new ResizeObserver(() => this.chart());
    this.sizes.observe($("#chart"));
    this.loadLost().catch(this.context.failed);
  }

  /** The field for the key of a label. It stays while reports come and go, so that the focus stays in it. */
  field() {
    const field = $("#label");
    if (!field) return;
    if (field !== document.activeElement) field.value = this.label();
    field.onchange = () => this.choose(LABEL + field.value.trim());
  }

  /** The start of the report; a younger ledger starts later than requested. */
  began() {
    return instant(this.usage.begins) ?? instant(this.usage.from);
  }

  /** Downloads of a report, for the same period as the tables. Tenants can only get JSON. */
  files(report) {
    const file = (words, format, name) =>
      html`<a
        class="btn"
        download="${name}"
        href="/api/v1/report/${report}?${new URLSearchParams({ ...this.period, to: this.usage.to, format })}"
        >${words}</a
      >`;
    const name = `${report}-by-${this.by.replace(/\W+/g, "-")}`;
    return html`<div class="acts">
      ${me.all ? file("CSV", "csv", `${name}.csv`) : ""}${file("JSON", "json", `${name}.json`)}${
        me.all && report === "cost" ? file("FOCUS", "focus", `${name}-focus.csv`) : ""
      }
    </div>`;
  }

  // ---- the chart ----

  /** The legend of the area above the line, and a note if something failed. */
  offWords() {
    const { usage } = this;
    const off = usage.total.cordoned_gpu_hours || usage.total.unhealthy_gpu_hours;
    const failed = this.marks.some(
      ({ kind, time }) => kind === "failure" && instant(time) < instant(usage.to),
    );
    return html`${
      off
        ? html`<div class="legend foot">
            <span><i class="sw off"></i>cordoned or unhealthy, not allocated</span>
          </div>`
        : ""
    }
    ${
      failed
        ? html`<p class="foot faint">Unhealthy GPUs count as allocated until their pods end.</p>`
        : ""
    }`;
  }

  chart() {
    const box = $("#chart");
    const width = box?.clientWidth ?? 0;
    if (!width || width === this.drawn) return;
    const { usage } = this;
    const marks = this.shownMarks();
    if ($("#lost")) mount($("#lost"), lostChart(this.lost, { began: this.began(), width, marks }));
    const begins = [...new Set(usage.steps.map(step => step.from))].sort().map(instant);
    const times = begins.map(ms => Math.max(ms, this.began())); // the first step may start before the ledger
    if (!times.length) {
      mount(box, html`<p class="faint">No data yet</p>`);
      return;
    }
    const end = instant(usage.to);
    const lengths = times.map((ms, at) => ((times[at + 1] ?? end) - ms) / 3_600_000);
    const place = new Map(begins.map((ms, at) => [ms, at]));
    const own = usage.rows.filter(
      row =>
        row.allocated_gpu_hours && (this.by !== "namespace" || namespacePlace(row.key) < OTHER),
    );
    const named = own.slice(0, SERIES).map(row => ({
      name: row.key || "(none)",
      key: row.key,
      colour: this.colour(row.key, usage.rows.indexOf(row)),
      values: times.map(() => 0),
    }));
    const left = usage.rows.filter(
      row => row.allocated_gpu_hours && !named.some(each => each.key === row.key),
    );
    const others = {
      name: left.length === 1 ? left[0].key || "(none)" : `${num(left.length)} others`,
      key: null,
      colour: NAMESPACE_COLOURS[OTHER],
      values: times.map(() => 0),
    };
    const line = times.map(() => 0);
    const off = times.map(() => 0);
    for (const step of usage.steps) {
      const at = place.get(instant(step.from));
      const cards = step.allocated_gpu_hours / lengths[at];
      const series = named.find(each => each.key === step.key && cards) ?? others;
      series.values[at] += cards;
      line[at] += cards + (step.free_gpu_hours ?? 0) / lengths[at];
      off[at] += ((step.cordoned_gpu_hours ?? 0) + (step.unhealthy_gpu_hours ?? 0)) / lengths[at];
    }
    const series = others.values.some(value => value > 1e-6) ? [...named, others] : named;
    mount(
      box,
      html`${stackChart({
        width,
        times,
        end,
        series,
        line,
        off,
        marks,
        label: `GPUs allocated over time, by ${this.byWords()}. ${usableWords(line)}. The table below has the same data.`,
      })}${stackNotes({ width, times, end, series, marks })}`,
    );
    this.drawn = width;
  }

  shownMarks() {
    return this.marks
      .filter(mark => mark.kind !== "recovery")
      .map(mark => ({
        ms: instant(mark.time),
        kind: mark.kind,
        words: mark.sentence,
        look: LOOK_OF[mark.kind] ?? "policy",
      }));
  }

  colour(key, at) {
    return this.by === "namespace" ? namespaceColour(key) : NAMESPACE_COLOURS[at % OTHER];
  }

  // ---- the tables ----

  rows() {
    const { usage, cost } = this;
    const costs = new Map(cost?.rows?.map(row => [row.key, row.cost]) ?? []);
    const priced = cost?.total?.cost !== undefined && cost.total.cost !== null;
    const told = usage.total.reported_gpu_hours > 0;
    const whole = usage.total;
    const held = whole.allocated_gpu_hours;
    const part = each =>
      each.allocated_gpu_hours ? percent(each.allocated_gpu_hours / held) : "–";
    const none = html`<tr>
      <td colspan="5" class="faint">No GPU-hours in this period</td>
    </tr>`;
    return html`<section class="card">
      <div class="ch-h">
        <h2>${priced ? "Cost" : "GPU-hours"} <small>by ${this.byWords()}</small></h2>
        ${this.files(priced ? "cost" : "usage")}
      </div>
      <table class="t tight">
        <thead>
          <tr>
            <th scope="col">${this.label() || sentenceCase(this.by)}</th>
            <th scope="col" class="num">GPU-hours</th>
            <th scope="col" class="num hide-s">Share</th>
            ${told ? html`<th scope="col" class="num">Used</th>` : ""}${
              priced ? html`<th scope="col" class="num">Cost</th>` : ""
            }
          </tr>
        </thead>
        <tbody>
          ${
            usage.rows.length
              ? usage.rows
                  .slice(0, ROWS)
                  .map((each, at) => this.usageRow(each, at, { part, told, priced, costs }))
              : none
          }${
            usage.rows.length > ROWS
              ? html`<tr class="more">
                  <td colspan="5">and ${num(usage.rows.length - ROWS)} more in the downloads</td>
                </tr>`
              : ""
          }
        </tbody>
        <tfoot>
          <tr>
            <td>Allocated</td>
            <td class="num m">${held ? decimal(held) : NOTHING}</td>
            <td class="num m hide-s">${part(whole)}</td>
            ${
              told
                ? html`<td class="num m">
                    ${percent(whole.used_gpu_hours / whole.reported_gpu_hours)}
                  </td>`
                : ""
            }${priced ? html`<td class="num m">${amount(cost.total.cost, cost.currency)}</td>` : ""}
          </tr>
          ${[
            ["free", "Free", whole.free_gpu_hours],
            ["cordoned", "Cordoned", whole.cordoned_gpu_hours],
            ["broken", "Unhealthy", whole.unhealthy_gpu_hours],
          ].map(
            ([look, words, value]) =>
              html`<tr class="faint">
                <td><i class="sw ${look}"></i>${words}</td>
                <td class="num m">${decimal(value ?? 0)}</td>
                <td class="hide-s"></td>
                ${told ? html`<td></td>` : ""}${priced ? html`<td></td>` : ""}
              </tr>`,
          )}
        </tfoot>
      </table>
      ${cost instanceof Problem ? html`<div class="foot">${problemNote(cost, "costs")}</div>` : ""}
    </section>`;
  }

  usageRow(each, at, { part, told, priced, costs }) {
    const { cost } = this;
    return html`<tr data-row tabindex="0">
      <td class="name">
        <i
          class="nsdot"
          data-s="background:${
            this.by === "namespace" || at < SERIES
              ? this.colour(each.key, at)
              : NAMESPACE_COLOURS[OTHER]
          }"
        ></i
        >${this.keyLink(each.key)}${second([each.allocated_gpu_hours ? `${part(each)} of total` : ""])}
      </td>
      <td class="num m">
        ${each.allocated_gpu_hours ? decimal(each.allocated_gpu_hours) : NOTHING}
      </td>
      <td class="num m hide-s">${part(each)}</td>
      ${
        told
          ? html`<td class="num m">
              ${
                each.reported_gpu_hours
                  ? html`<span class="ub"
                        ><i
                          data-s="width:${(100 * each.used_gpu_hours) / each.reported_gpu_hours}%"
                        ></i></span
                      >${percent(each.used_gpu_hours / each.reported_gpu_hours)}`
                  : "–"
              }
            </td>`
          : ""
      }${priced ? html`<td class="num m">${amount(costs.get(each.key), cost.currency)}</td>` : ""}
    </tr>`;
  }

  keyLink(key) {
    if (!key) return html`<span class="faint">(none)</span>`;
    if (this.by === "namespace") return link("pods", key, { q: `${key}/` });
    return this.by === "node" ? link("fleet", key, { q: `node:${key}` }) : key;
  }

  idleCard() {
    const { idle } = this;
    if (idle instanceof Problem)
      return html`<section class="card">
        <h2>Idle shares</h2>
        ${problemNote(idle, "idle shares")}
      </section>`;
    if (!idle.found)
      return html`<section class="card">
        <h2>Idle shares</h2>
        <p class="faint">
          ${
            idle.reported
              ? "No shares were idle for 1 hour or more."
              : "No utilization data yet. Nodes report once per hour."
          }
        </p>
      </section>`;
    return html`<section class="card">
      <h2>Idle shares <small>unused for 1 hour or more</small></h2>
      <table class="t tight">
        <thead>
          <tr>
            <th scope="col">Pod</th>
            <th scope="col" class="num">Idle</th>
            <th scope="col" class="num">GPU-hours</th>
          </tr>
        </thead>
        <tbody>
          ${idle.shares.slice(0, ROWS).map(
            share =>
              html`<tr data-row tabindex="0">
                <td class="name">${podName(share.namespace, share.pod)}</td>
                <td class="num m">${decimal(share.hours)} h</td>
                <td class="num m">${decimal(share.gpu_hours)}</td>
              </tr>`,
          )}${
            idle.found > ROWS
              ? html`<tr class="more">
                  <td colspan="3">and ${num(idle.found - ROWS)} more</td>
                </tr>`
              : ""
          }
        </tbody>
      </table>
    </section>`;
  }

  lostCard() {
    const { lost } = this;
    if (lost instanceof Problem)
      return html`<section class="card">
        <h2>Lost GPU-hours</h2>
        ${problemNote(lost, "lost GPU-hours")}
      </section>`;
    if (!lost)
      return html`<section class="card">
        <h2>Lost GPU-hours</h2>
        <p class="faint loading">Loading…</p>
      </section>`;
    return html`<section class="card">
      <div class="ch-h">
        <h2>Lost GPU-hours <small>${stepWords(lost.step_s)} averages · line: capacity</small></h2>
        ${this.files("lost")}
      </div>
      <p class="faint">${lostWords(lost)}</p>
      <div class="chart" id="lost"></div>
      ${lostTable(lost)}
      <p class="foot faint">${unmeasuredWords(lost)}</p>
    </section>`;
  }

  clicked(event) {
    const { dataset } = event.target.closest("button") ?? {};
    if (dataset?.by === "label") {
      this.isNaming = true;
      this.draw();
      $("#label").focus();
    } else if (dataset?.by) this.choose(dataset.by);
    else if (dataset?.span) {
      this.span = this.said = dataset.span;
      this.choose(this.by);
    }
  }

  /** Load the report by something else, unless that is a label without a key. */
  choose(by) {
    if (by === LABEL) return;
    this.by = by;
    this.isNaming = false;
    this.context.setParameters({
      by: by === "namespace" ? "" : by,
      span: this.span === "1d" ? "" : this.span,
    });
    this.ask();
  }

  close() {
    super.close();
    this.sizes?.disconnect();
  }
}

const iso = (ms, round) => new Date(round(ms / 1000) * 1000).toISOString().replace(/\.\d+Z$/, "Z");
const NOTHING = html`<span class="faint">0</span>`;
const stepWords = seconds =>
  seconds < 3600 ? `${num(seconds / 60)} min` : `${num(seconds / 3600)} h`;
const usableWords = line =>
  `Usable capacity: ${[line[0], Math.min(...line), line.at(-1)]
    .map((value, at) => `${value.toFixed(1)} GPUs ${["first", "minimum", "last"][at]}`)
    .join(", ")}`;
const amount = (value, currency) =>
  value === undefined || value === null ? "–" : `${decimal(value)} ${currency}`.trim();
