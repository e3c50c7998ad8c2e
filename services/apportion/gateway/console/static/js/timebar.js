// The time bar: shows the current moment and the activity over time, and changes the moment.
//
// The `timeline` endpoint has event counts per interval and marks (failures, cordons, policy, configuration).
// The bar shows the whole ledger or a range that ends now, and can be folded; both are remembered. A moment
// before the range is shown on the whole ledger. While dragging, one moment is requested at a time, always the newest.
import { getNow, Problem } from "./api.js";
import { clock, day, duration, num, SPANS, when } from "./format.js";
import { $, html, ICONS, mount } from "./html.js";
import { grouped, groupWords, LOOK_OF, MARK_ROOM, markButtons, markList } from "./marks.js";
import { RED } from "./kinds.js";
import { isLive, moment, revisionWords, shownTime } from "./moment.js";
import { href } from "./route.js";
import { timeTicks } from "./chart.js";

const SPEEDS = [30, 120, 600, 3600];
const REFRESH_MS = 4000;
const REDRAW_MS = 10_000;
const STEP_MS = 1000; // of the slider; addresses have whole seconds
const LIST_WIDTH = 340; // as in frame.css
const TICK_ROOM = 70;

const CONTROLS = html`<div class="t-now">
    <div class="t-clock"><output id="t-clock"></output><span id="t-ago"></span></div>
    <a id="t-rev" class="m"></a>
  </div>
  <div class="t-ctl">
    <button id="t-before" aria-label="Previous mark" title="Previous mark  [">
      ${ICONS.before}</button
    ><button id="t-play" aria-label="Play" title="Play  space">${ICONS.play}</button
    ><button id="t-next" aria-label="Next mark" title="Next mark  ]">${ICONS.next}</button
    ><button id="t-speed" title="Speed" class="m"></button>
    <select id="t-span" aria-label="Time range" title="Time range">
      ${[["", "All"], ...SPANS].map(
        ([name, words]) => html`<option value="${name}">${words}</option>`,
      )}
    </select>
  </div>
  <div class="t-track" id="t-track">
    <canvas id="t-hist" aria-hidden="true"></canvas>
    <div class="t-marks" id="t-marks"></div>
    <input id="t-range" type="range" step="${STEP_MS}" aria-label="Time shown" /><i
      class="t-head"
      id="t-head"
    ></i
    ><i class="t-ghost" id="t-ghost" hidden></i><span class="t-tip" id="t-tip" hidden></span>
    <div class="t-list" id="t-list" popover aria-label="Marks"></div>
    <p class="t-none faint" id="t-none" hidden></p>
  </div>
  <button id="t-live" class="t-live" title="Back to now  n"><i></i>Now</button
  ><button
    id="t-fold"
    class="t-fold"
    aria-label="Timeline"
    aria-controls="t-track"
    title="Show or hide the timeline"
  >
    ${ICONS.opens}
  </button>`;

export class TimeBar {
  constructor(element, setMoment) {
    this.setMoment = setMoment;
    this.line = null;
    this.asked = -Infinity;
    this.wanted = null;
    this.playing = null;
    this.speed = 1;
    this.span = SPANS.some(([name]) => name === remembered("span")) ? remembered("span") : "";
    mount(element, CONTROLS);
    this.range = $("#t-range");
    $("#t-span").value = this.span;
    $("#t-span").addEventListener("change", event => this.choose(event.target.value));
    $("#t-fold").addEventListener("click", () => this.fold(!isFolded()));
    $("#t-before").addEventListener("click", () => this.mark(-1));
    $("#t-next").addEventListener("click", () => this.mark(1));
    $("#t-play").addEventListener("click", () => this.play());
    $("#t-live").addEventListener("click", () => this.now());
    $("#t-speed").addEventListener("click", () => {
      this.speed = (this.speed + 1) % SPEEDS.length;
      this.draw();
    });
    $("#t-marks").addEventListener("click", event => {
      const button = event.target.closest(".mk");
      if (!button) return;
      const group = this.groups[button.dataset.at];
      if (group.marks.length > 1)
        this.openList(group, button); // the button itself opens the popover
      else this.seek(button.dataset.revision);
    });
    $("#t-list").addEventListener("click", event => {
      const button = event.target.closest("button");
      if (!button) return;
      $("#t-list").hidePopover();
      this.seek(button.dataset.revision);
    });
    $("#t-list").addEventListener("toggle", event => {
      if (event.newState === "closed") this.draw();
    });
    this.range.addEventListener("input", () => this.dragged());
    const track = $("#t-track");
    track.addEventListener("pointermove", event => this.ghost(event));
    track.addEventListener("pointerleave", () => {
      $("#t-ghost").hidden = true;
      $("#t-tip").hidden = true;
    });
    setInterval(() => this.tick(), 1000);
  }

  /** Advance the clock, and redraw the axis now and then. */
  tick() {
    if (this.unread) this.news();
    if (!isLive()) return;
    if (this.line && performance.now() - this.drawn > REDRAW_MS) this.draw();
    else this.drawClock();
  }

  /** Reload the timeline after an event, at most every few seconds. */
  async news() {
    const now = performance.now();
    this.unread = true;
    if (this.asking || now - this.asked < REFRESH_MS) return;
    this.unread = false;
    this.asking = true;
    this.asked = now;
    try {
      const width = $("#t-hist").clientWidth || 600;
      const bins = Math.max(20, Math.min(400, Math.floor(width / 3)));
      const from = this.isCut() ? wholeSecond(this.from()) : "";
      this.line = { ...read(await getNow("timeline", { bins, from })), isCut: Boolean(from) };
      this.absent = "";
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.absent = problem.unknown ? "This gateway has no history." : "";
    } finally {
      this.asking = false;
    }
    this.draw();
  }

  // ---- the range ----

  /** Choose a time range; empty for the whole ledger. */
  choose(span) {
    this.span = span;
    remember("span", span);
    this.draw();
    this.reload();
  }

  reload() {
    this.asked = -Infinity;
    this.news();
  }

  /** Whether the bar shows only the end of the ledger. */
  isCut() {
    return Boolean(this.line) && this.from() > this.line.from;
  }

  /** The time at the left end of the bar. */
  from() {
    const seconds = Number(SPANS.find(([name]) => name === this.span)?.[2] ?? 0);
    const from = seconds ? this.end() - seconds * 1000 : 0;
    return from > shownTime() ? this.line.from : Math.max(this.line.from, from);
  }

  /** Hide the timeline, or show it again. The clock and the buttons stay. */
  fold(isHidden) {
    document.documentElement.classList.toggle("folded", isHidden);
    remember("folded", isHidden ? "yes" : "");
    this.draw();
  }

  // ---- changing the moment ----

  now() {
    this.stop();
    this.seek("");
  }

  seekTime(ms) {
    this.seek(this.atOf(ms));
  }

  /** Handle the slider. Its end means now, even if it was drawn a while ago. */
  dragged() {
    const { value, max } = this.range;
    if (value === max) this.now();
    else {
      this.stop();
      this.seekTime(Number(value));
    }
  }

  /** A time for the address: whole seconds, empty for now, the first revision for the start. */
  atOf(ms) {
    if (ms >= this.end() - 500) return "";
    if (this.line && ms < this.line.from + 1000) return String(this.line.first);
    return wholeSecond(ms);
  }

  /** Request one moment at a time; in the meantime, remember only the newest request. */
  async seek(at) {
    this.wanted = at;
    if (this.seeking) return;
    this.seeking = true;
    try {
      while (this.wanted !== null) {
        const next = this.wanted;
        this.wanted = null;
        await this.setMoment(next);
      }
    } finally {
      this.seeking = false;
    }
  }

  step(ms) {
    this.stop();
    this.seekTime(shownTime() + ms);
  }

  mark(direction) {
    const at = shownTime();
    const marks = this.line?.marks ?? [];
    const found =
      direction > 0
        ? marks.find(mark => mark.ms > at + 999)
        : marks.findLast(mark => mark.ms < at - 999);
    this.stop();
    this.seek(
      found ? String(found.revision) : direction > 0 || !this.line ? "" : this.atOf(this.from()),
    );
  }

  /** Play forwards from the current moment; from shortly before the last mark if that is now. */
  play() {
    if (this.playing) {
      this.stop();
      return;
    }
    if (!this.line) return;
    const last = this.line.marks.at(-1)?.ms ?? this.from();
    const from = isLive()
      ? Math.max(this.from(), last - 10 * SPEEDS[this.speed] * 1000)
      : shownTime();
    this.playing = { from, began: performance.now(), speed: SPEEDS[this.speed] };
    this.run(this.playing);
    this.draw();
  }

  async run(play) {
    while (this.playing === play) {
      const ms = play.from + (performance.now() - play.began) * play.speed;
      if (ms >= this.end()) {
        this.now();
        return;
      }
      await this.setMoment(this.atOf(ms));
      await new Promise(resolve => {
        requestAnimationFrame(resolve);
      });
    }
  }

  stop() {
    this.playing = null;
    this.drawPlay();
  }

  // ---- drawing ----

  end() {
    return Math.max(Date.now(), this.line?.to ?? 0);
  }

  place(ms) {
    const from = this.from();
    return Math.max(0, Math.min(1, (ms - from) / Math.max(1, this.end() - from)));
  }

  draw() {
    this.drawn = performance.now();
    this.drawClock();
    this.drawPlay();
    $("#t-live").setAttribute("aria-pressed", String(isLive()));
    const speed = `${SPEEDS[this.speed]}×`;
    $("#t-speed").textContent = speed;
    $("#t-speed").setAttribute("aria-label", `Speed ${speed}`);
    $("#t-fold").setAttribute("aria-expanded", String(!isFolded()));
    const none = $("#t-none");
    none.hidden = Boolean(this.line) || !this.absent;
    none.textContent = this.absent ?? "";
    for (const id of ["#t-head", "#t-range", "#t-marks", "#t-hist"]) $(id).hidden = !this.line;
    for (const id of ["#t-before", "#t-next", "#t-play", "#t-speed"]) $(id).disabled = !this.line;
    if (!this.line) return;
    if (this.line.isCut !== this.isCut()) this.unread = true; // the next tick loads the other range
    this.drawMarks();
    drawHistogram($("#t-hist"), this);
  }

  drawPlay() {
    const button = $("#t-play");
    mount(button, this.playing ? ICONS.pause : ICONS.play);
    button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  drawClock() {
    const time = shownTime();
    const live = isLive();
    $("#t-clock").textContent = moment.problem ? "––:––:––" : clock(time);
    const today = day(time) === day(Date.now());
    $("#t-ago").textContent = moment.problem
      ? "invalid time"
      : live
        ? liveWords()
        : `${today ? "" : `${day(time)}, `}${duration((Date.now() - time) / 1000)} ago`;
    const revision = live ? moment.newest : moment.revision;
    const of =
      live || moment.eventTime === null || clock(moment.eventTime) === clock(time)
        ? ""
        : ` · ${when(moment.eventTime, time)}`;
    $("#t-rev").textContent = revision ? `rev ${num(revision)}${of}` : "";
    $("#t-rev").href = href("events", { rev: revision ? String(revision) : "" });
    if (!this.line) return;
    Object.assign(this.range, {
      min: Math.floor(this.from() / STEP_MS) * STEP_MS,
      max: Math.ceil(this.end() / STEP_MS) * STEP_MS,
      value: time,
    });
    this.range.setAttribute(
      "aria-valuetext",
      `${clock(time)}, revision ${num(revision)}${of}${live ? ", now" : ""}`,
    );
    $("#t-head").style.left = `${this.place(time) * 100}%`;
  }

  /** Draw the marks, unless a list of marks is open. The focus stays on its mark, even in another group. */
  drawMarks() {
    if ($("#t-list").matches(":popover-open")) return;
    const width = $("#t-track").clientWidth;
    if (!width) return; // folded
    const x = ms => this.place(ms) * width;
    const marks = this.line.marks.filter(mark => mark.ms >= this.from());
    this.groups = grouped(marks, mark => x(mark.ms), width, x(shownTime()));
    const held = Number(markOf(document.activeElement)?.dataset.revision);
    mount($("#t-marks"), markButtons(this.groups, width));
    const at = this.groups.findIndex(group => group.marks.some(mark => mark.revision === held));
    $(`#t-marks [data-at="${at}"]`)?.focus();
  }

  openList(group, button) {
    const list = mount($("#t-list"), markList(group));
    const { left, top } = button.getBoundingClientRect();
    list.style.left = `${Math.max(8, Math.min(left, innerWidth - LIST_WIDTH - 8))}px`;
    list.style.bottom = `${innerHeight - top + 4}px`;
  }

  ghost(event) {
    if (!this.line) return;
    const box = $("#t-track").getBoundingClientRect();
    const part = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    const ms = this.from() + part * (this.end() - this.from());
    const group = this.groups?.find(each => Math.abs(each.x - part * box.width) < MARK_ROOM / 2);
    const tip = $("#t-tip");
    const ghost = $("#t-ghost");
    ghost.hidden = false;
    tip.hidden = false;
    ghost.style.left = `${part * 100}%`;
    const { bins } = this.line;
    const at = bins.findIndex(each => ms < each.to);
    // A bin without events has no revision of its own: the state is that of an earlier one.
    const bin = bins.slice(0, at < 0 ? bins.length : at + 1).findLast(each => each.last);
    tip.textContent = group
      ? groupWords(group)
      : `${clock(ms)}  ·  rev ${revisionWords(bin?.last ?? 0).slice(1)}`;
    tip.style.left = `${Math.max(tip.offsetWidth / 2, Math.min(box.width - tip.offsetWidth / 2, part * box.width))}px`;
  }
}

/** @type {(element: Element) => any} */
const markOf = element => element.closest("#t-marks .mk");

const isFolded = () => document.documentElement.classList.contains("folded");

/** A time as in addresses: in UTC, in whole seconds. */
const wholeSecond = ms => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    /* storage may be disabled */
  }
}

function remembered(name) {
  try {
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

/** The status below the clock: live, or since when the gateway has been unreachable. */
const liveWords = () =>
  moment.silent ? `${moment.silent.why} since ${clock(moment.silent.since)}` : "live";

/**
 * The timeline, with times in milliseconds and counts split into quiet and red. The type of an event does not
 * tell a recovery from a failure; its mark does.
 */
export function read(answer) {
  const recovered = answer.marks
    .filter(mark => mark.kind === "recovery" && RED.has(mark.type))
    .map(mark => mark.revision);
  const bins = answer.bins.map(bin => {
    let [quiet, red] = [0, 0];
    for (const [kind, n] of Object.entries(bin.counts)) {
      if (RED.has(kind)) red += n;
      else quiet += n;
    }
    const well = recovered.filter(
      revision => bin.first_revision <= revision && revision <= bin.last_revision,
    ).length;
    [quiet, red] = [quiet + well, red - well];
    return {
      from: Date.parse(bin.from_time),
      to: Date.parse(bin.to_time),
      last: bin.last_revision,
      quiet,
      red,
    };
  });
  const marks = answer.marks
    .map(mark => ({
      ms: Date.parse(mark.time),
      revision: mark.revision,
      sentence: mark.sentence,
      look: LOOK_OF[mark.kind] ?? "policy",
      label: mark.kind,
    }))
    .sort((a, b) => a.ms - b.ms || a.revision - b.revision);
  return {
    from: Date.parse(answer.first_time),
    to: Date.parse(answer.last_time),
    first: answer.first_revision,
    bins,
    marks,
  };
}

function drawHistogram(canvas, bar) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const scale = Math.min(2, devicePixelRatio);
  if (!width) return;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name);
  const paint = canvas.getContext("2d");
  paint.scale(scale, scale);
  const base = height - 15;
  const room = base - 17;
  const most = Math.sqrt(Math.max(1, ...bar.line.bins.map(bin => bin.quiet + bin.red)));
  const shown = shownTime();
  for (const bin of bar.line.bins.filter(each => each.to >= bar.from())) {
    const x = bar.place(bin.from) * width;
    const wide = Math.max(1, bar.place(bin.to) * width - x - 1);
    const tall = (Math.sqrt(bin.quiet + bin.red) / most) * room; // so that a burst does not flatten the rest
    const red = (tall * bin.red) / Math.max(1, bin.quiet + bin.red);
    paint.fillStyle = colour(bin.from <= shown ? "--tick" : "--tick-off");
    paint.fillRect(x, base - tall + red, wide, tall - red);
    paint.fillStyle = colour("--c-broken");
    if (bin.red) paint.fillRect(x, base - tall, wide, Math.max(1, red));
  }
  paint.fillStyle = colour("--line");
  paint.fillRect(0, base + 0.5, width, 1);
  paint.font = `10px ${colour("--mono")}`;
  paint.fillStyle = colour("--faint");
  for (const { ms, words } of timeTicks(bar.from(), bar.end(), width / TICK_ROOM)) {
    const x = bar.place(ms) * width;
    paint.fillRect(x, base, 1, 3);
    const half = paint.measureText(words).width / 2;
    if (x > half && x < width - half) paint.fillText(words, x - half, height - 1);
  }
}
