// Events: a live list, the newest first, with the details of each event. With `diff` in the address, the
// comparison of two moments (diff.js) opens instead.
// Invariant: all rows belong to the newest query. The search field and the chips are never redrawn, because
// they may have the focus.
import { getNow } from "../api.js";
import { instant, many, num, subjectWords, when } from "../format.js";
import { $, $$, html, ICONS, mount, renew } from "../html.js";
import { chipsOf, countKinds, kindOf } from "../kinds.js";
import { link, podOf, receipt, told } from "../words.js";
import { isLive, moment, shownTime } from "../moment.js";
import { answer, copyFrom, either, problemNote, searchField, second } from "../parts.js";
import { openDiff } from "./diff.js";
import { loadAnew } from "./list_page.js";
import { sentenceCase } from "../typography.js";

const PAGE = 150;
const MORE_PAGES = 4; // older pages to load automatically if a filter hides most rows
const NEWER_SHOWN = 12;
const LIVE_MS = 700;
const TYPING_MS = 250;

/** See app.js. */
export async function open(main, context) {
  if (context.parameters.has("diff")) return openDiff(main, context);
  const page = new EventsPage(main, context);
  await page.load();
  if (!context.alive()) return null;
  page.show();
  return page;
}

class EventsPage {
  constructor(main, context) {
    const { parameters } = context;
    this.main = main;
    this.context = context;
    this.asking = null; // see loadAnew
    this.text = parameters.get("q") ?? "";
    this.hidden = new Set((parameters.get("hide") ?? "").split(",").filter(Boolean));
    const rev = parameters.get("rev") ?? "";
    this.chosen = /^\d{1,15}$/.test(rev) ? Number(rev) : 0;
    this.odd = [...this.hidden]
      .filter(kind => !chipsOf({ other: 1 }).includes(kind))
      .map(kind => `Unknown kind “${kind}”. Use ${either(chipsOf({}))}.`);
    if (rev && !this.chosen) this.odd.push(`Invalid revision “${rev}”. Use a number such as 1200.`);
    this.held = false;
    this.asked = 0;
    this.updating = null; // the query of a live update, see loadAnew
    this.closed = false;
  }

  // ---- data ----

  async load() {
    this.sought = this.text.trim(); // the user may type more before the answer arrives
    const before = this.chosen ? this.chosen + NEWER_SHOWN : isLive() ? 0 : moment.revision + 1;
    const [page, line] = await Promise.all([
      this.ask(before),
      getNow("timeline", { bins: 1, to: isLive() ? "" : moment.revision }),
    ]);
    this.rows = page.items;
    this.next = page.continue;
    this.hasOlder = false; // the user loaded older events, which an update would drop
    this.newest = page.revision;
    this.first = line.first_time;
    this.total = line.bins.reduce(
      (sum, bin) => sum + Object.values(bin.counts).reduce((a, b) => a + b, 0),
      0,
    );
    this.counts = countKinds(line.bins[0]?.counts ?? {});
    await this.fill();
  }

  ask(before) {
    return getNow("log", { limit: PAGE, text: this.sought, ...(before ? { before } : {}) });
  }

  /** Load older pages until there are enough rows to show. */
  async fill() {
    for (
      let asked = 0;
      asked < MORE_PAGES && this.next && this.shown().length < PAGE / 3;
      asked += 1
    )
      await this.older();
  }

  async older() {
    const { rows, next, sought } = this;
    const isOld = () => this.rows !== rows || this.next !== next; // another query, or loaded already
    const page = await this.ask(Number(next)).catch(problem => {
      if (!isOld()) throw problem;
    });
    if (this.rows !== rows && this.sought === sought && this.next && !this.closed) {
      await this.older(); // an update replaced the list: the user still wants what comes before it
      return;
    }
    if (isOld()) return;
    rows.push(...page.items);
    this.next = page.continue;
  }

  shown() {
    return this.rows.filter(row => !this.hidden.has(kindOf(row.type)));
  }

  // ---- page ----

  show() {
    mount(
      this.main,
      html`<div class="page wide">
        <div id="answer"></div>
        <div class="bar">
          ${searchField(this.text, "Pod, node or text", "Search events")}
          <div class="chips" id="kinds" role="group" aria-label="Kinds">
            ${chipsOf({ other: 1 }).map(chip)}
          </div>
          <a class="btn end" id="compare">Compare…</a>
        </div>
        <div class="split">
          <div class="tablebox" id="box" tabindex="-1">
            <button class="newpill" id="pill" hidden></button>
            <table class="t ev">
              <caption class="unseen">
                Events, newest first
              </caption>
              <thead>
                <tr>
                  <th scope="col" class="num hide-s">Revision</th>
                  <th scope="col">Time</th>
                  <th scope="col">Event</th>
                </tr>
              </thead>
              <tbody id="rows"></tbody>
            </table>
          </div>
          <aside
            class="card detail"
            id="detail"
            aria-label="Event details"
            aria-live="polite"
          ></aside>
        </div>
      </div>`,
    );
    this.answer();
    this.list();
    this.detail();
    this.listen();
  }

  /** The address that compares the shown moment with ten minutes before it. */
  diffAddress() {
    const end = shownTime();
    const text = ms => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");
    return `#/events?diff=${text(
      Math.max(instant(this.first) ?? 0, end - 600_000) + 1000,
    )},${isLive() ? "now" : text(end)}`;
  }

  answer() {
    const [last] = this.chosen ? [] : this.rows;
    const sentence = this.total
      ? html`${many(this.total, "event")} since
        ${when(instant(this.first) ?? 0, shownTime(), true)}${
          last
            ? html` · newest ${receipt(last.revision)} at
              ${when(instant(last.time) ?? 0, shownTime())}`
            : ""
        }`
      : "No events yet";
    mount(
      $("#answer"),
      answer(sentence, [
        ...this.odd,
        this.chosen ? link("events", "All events", {}) : "",
        this.counts.refusal ? many(this.counts.refusal, "refusal") : "",
        this.counts.health ? many(this.counts.health, "health event") : "",
        this.sought
          ? html`<span role="status"
              >${this.next ? "at least " : ""}${num(this.shown().length)} matching</span
            >`
          : "",
      ]),
    );
    $("#compare").setAttribute("href", this.diffAddress());
    const kinds = chipsOf(this.counts);
    for (const each of $$("#kinds button")) {
      const { kind } = each.dataset;
      each.hidden = !kinds.includes(kind);
      each.setAttribute("aria-pressed", String(!this.hidden.has(kind)));
      $("em", each).textContent = num(this.counts[kind]);
    }
  }

  list() {
    const rows = folded(this.shown());
    renew($("#rows"), [
      ...rows.map(row => eventRow(row, this.chosen)),
      this.next
        ? html`<tr class="more">
            <td class="hide-s"></td>
            <td></td>
            <td><button class="btn" id="older">Older</button></td>
          </tr>`
        : "",
      rows.length
        ? ""
        : html`<tr class="more">
            <td colspan="3">No matching events${this.next ? " among the newest" : ""}</td>
          </tr>`,
    ]);
  }

  async showOlder() {
    this.hasOlder = true;
    if (this.asking === this.updating) this.asking = null; // a press counts more than an update
    await this.older();
    await this.fill();
    if (!this.closed) this.list();
  }

  async detail() {
    const revision = this.chosen || this.rows[0]?.revision;
    const box = $("#detail");
    box.classList.toggle("chosen", Boolean(this.chosen));
    for (const row of $$("#rows tr"))
      row.classList.toggle(
        "sel",
        Number(row.dataset.first) <= revision && revision <= Number(row.dataset.revision),
      );
    if (!revision) {
      mount(box, html`<p class="faint">Select an event to see its details.</p>`);
      return;
    }
    if (this.detailed === revision) return;
    this.detailed = revision;
    if (!box.childElementCount) mount(box, html`<p class="faint loading">Loading…</p>`);
    let found;
    try {
      found = await getNow(`log/${revision}`);
    } catch (problem) {
      if (this.closed || this.detailed !== revision) return;
      mount(
        box,
        html`<button class="x" aria-label="Close">${ICONS.close}</button>
          <h2>No event <small class="m">#${num(revision)}</small></h2>
          ${problemNote(problem, "event details")}`,
      );
      return;
    }
    if (this.closed || this.detailed !== revision) return;
    const { row, event } = found;
    const ms = instant(row.time);
    mount(
      box,
      html`<button class="x" aria-label="Close">${ICONS.close}</button>
        <h2>${row.type || "No event"} <small class="m">#${num(revision)}</small></h2>
        <p class="say">${told(row)}.</p>
        <div class="kv">
          <span>Time</span
          ><b class="m"
            >${
              ms === null
                ? row.time
                : new Date(ms)
                    .toISOString()
                    .replace("T", " ")
                    .replace(/\.\d+Z$/, " UTC")
            }</b
          ><span>Source</span><b class="m">${row.source}</b><span>Subject</span
          ><b class="m">${subjectWords(row.subject)}</b>
        </div>
        <pre class="m" tabindex="0" aria-label="Event as JSON">
${JSON.stringify(event, null, 1)}</pre>
        <div class="acts">
          ${link("fleet", "Fleet at this time", { at: String(revision) }, "btn")}${podLinkOf(row, event)}
        </div>`,
    );
  }

  // ---- interaction and updates ----

  listen() {
    const { failed } = this.context;
    let typing = 0;
    $("#q").addEventListener("input", event => {
      this.text = event.target.value;
      this.context.setParameters({ q: this.text.trim() });
      clearTimeout(typing);
      typing = setTimeout(() => this.again().catch(failed), TYPING_MS);
    });
    $("#kinds").addEventListener("click", event => {
      const kind = event.target.closest("button")?.dataset.kind;
      if (kind) this.toggle(kind).catch(failed);
    });
    const box = $("#box");
    box.addEventListener("pointerenter", () => {
      this.held = true;
    });
    box.addEventListener("pointerleave", () => {
      this.held = false;
    });
    $("#pill").addEventListener("click", () => this.again(true).catch(failed));
    $("#rows").addEventListener("click", event => {
      if (event.target.closest("#older")) this.showOlder().catch(failed);
      else this.choose(event);
    });
    $("#rows").addEventListener("focusin", event => {
      if (event.target.matches("tr")) this.choose(event);
    });
    $("#detail").addEventListener("click", event => {
      if (event.target.closest(".x")) this.unchoose();
      else copyFrom(event);
    });
  }

  async toggle(kind) {
    if (!this.hidden.delete(kind)) this.hidden.add(kind);
    this.context.setParameters({ hide: [...this.hidden].join(",") });
    await this.fill();
    if (this.closed) return;
    this.answer();
    this.list();
  }

  choose(event) {
    const row = event.target.closest("tr[data-revision]");
    if (!row || event.target.closest("a:not(.rev)")) return;
    event.preventDefault();
    this.chosen = Number(row.dataset.revision);
    this.context.setParameters({ rev: String(this.chosen) });
    this.detail();
  }

  unchoose() {
    this.chosen = 0;
    this.context.setParameters({ rev: "" });
    if ($("#detail").contains(document.activeElement)) $("#box").focus();
    this.detail();
  }

  /** Load the newest events again; `forget` clears the selection. */
  async again(forget = false) {
    if (forget) {
      this.chosen = 0;
      this.context.setParameters({ rev: "" });
      $("#box").scrollTop = 0;
    }
    if (!(await loadAnew(this))) return;
    $("#pill").hidden = true;
    this.answer();
    this.list();
    this.detail();
  }

  /** Show new events, or only their count while the user points at the list, has scrolled, has loaded older
   * events, or has selected an event or text. Updates that come too fast are delayed, so that the last one is
   * shown too. */
  async update(live) {
    if (!live) {
      await this.again(true);
      return;
    }
    await pause(this.asked + LIVE_MS - performance.now());
    if (this.closed || !isLive()) return;
    const behind = moment.newest - this.newest;
    if (behind <= 0) return;
    const isStill = this.held || this.chosen || this.hasOlder || $("#box").scrollTop > 0;
    if (isStill || !getSelection().isCollapsed) {
      const pill = $("#pill");
      pill.hidden = false;
      pill.textContent = `↑ ${num(behind)} new`;
    } else {
      this.asked = performance.now();
      const isOwed = Boolean(this.asking); // this request replaces one that the user is waiting for
      const done = this.again();
      this.updating = isOwed ? null : this.asking;
      await (isOwed ? done.catch(this.context.failed) : done);
    }
  }

  close() {
    this.closed = true;
  }
}

const pause = ms =>
  new Promise(resolve => {
    setTimeout(resolve, ms);
  });

const chip = kind =>
  html`<button class="fchip k-${kind}" data-kind="${kind}">
    <i></i>${sentenceCase(kind)}<em></em>
  </button>`;

/** Whether an event is a recovery; its kind is the same as that of failures. */
const isRecovery = ({ type, healthy }) => type === "NodeHeard" || healthy === true;

/** Whether the event is hidden from this user: it has no subject. */
const isHidden = ({ subject, namespaces }) => !subject && namespaces?.length > 0;

/** Combine adjacent rows about devices of one node with the same text, and adjacent hidden rows. */
function folded(rows) {
  const found = [];
  for (const row of rows) {
    const last = found.at(-1);
    const isAlike =
      row.type === "DeviceHealthChanged"
        ? ["type", "subject", "healthy", "reason"].every(fact => last?.row[fact] === row[fact])
        : isHidden(row) && last && isHidden(last.row);
    if (last && isAlike) Object.assign(last, { count: last.count + 1, first: row.revision });
    else found.push({ row, count: 1, first: row.revision });
  }
  return found;
}

function eventRow({ row, count, first }, chosen) {
  const ms = instant(row.time);
  return html`<tr
    data-row
    tabindex="0"
    data-revision="${row.revision}"
    data-first="${first}"
    class="k-${kindOf(row.type)} ${isRecovery(row) ? "well" : ""} ${
      first <= chosen && chosen <= row.revision ? "sel" : ""
    }"
  >
    <td class="num hide-s">${receipt(row.revision)}</td>
    <td class="m" title="${row.time}">
      ${ms === null ? "" : when(ms, shownTime())}${second([receipt(row.revision)])}
    </td>
    <td>
      <i class="kd"></i
      ><span class="say"
        >${
          isHidden(row)
            ? html`<span class="faint"
                >${count > 1 ? "events" : "an event"} in another namespace</span
              >`
            : told(row)
        }${count > 1 ? html` <em>×${count}</em>` : ""}</span
      >
    </td>
  </tr>`;
}

/** A link to the pod that an event is about. */
function podLinkOf(row, event) {
  const { namespace, name } = event?.data?.name ? event.data : (podOf(row) ?? {});
  return namespace && name ? link(`pod/${namespace}/${name}`, "View pod", {}, "btn") : "";
}
