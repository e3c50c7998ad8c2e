// Fleet: all devices of all nodes in one picture, with counts of allocated, unhealthy and cordoned ones.
//
// Invariant: only the answer to the newest request is applied. So an answer with changes always meets the
// revision that it builds on, and the past is never shown as the present.
import { get, getNow, orNone } from "../api.js";
import { legend } from "../cards.js";
import { namespaceLegend } from "../colours.js";
import { many, num, percent } from "../format.js";
import { $, $$, html, mount, renew } from "../html.js";
import { countLink, link } from "../words.js";
import { isLive, moment } from "../moment.js";
import { copyFrom, searchField, segments } from "../parts.js";
import { ask, cardName, facts, panel } from "./card.js";
import { Filter, Fleet, odd, STATES, stateWords, WHOLE } from "./model.js";
import { Layout } from "./layout.js";
import { Painter, palette } from "./paint.js";

const HOVER_WIDTH = 312;
const MATCHES_SHOWN = 200;
const SUMMARY_MS = 2000;
const SAMPLES_MS = 5000; // utilization changes without an event

/** The count of unhealthy devices. Those in use are also counted as allocated, so the numbers add up. */
function brokenCount(all) {
  const look = all.broken ? "c-bad" : "";
  const told = countLink("fleet", all.broken, "unhealthy", { show: "broken" }, look);
  if (!all.brokenTaken) return told;
  const taken = { q: "state:broken", show: "granted" };
  return html`${told} (${countLink("fleet", all.brokenTaken, "in use", taken)})`;
}

/** The count of cordoned devices, if any, with those that are also counted as allocated or unhealthy. */
function cordonedCount(all) {
  if (!all.cordoned) return "";
  const told = html` · ${countLink("fleet", all.cordoned, "cordoned", { show: "cordoned" })}`;
  const what = [all.cordonedHeld ? "in use" : "", all.cordonedBroken ? "unhealthy" : ""]
    .filter(Boolean)
    .join(" or ");
  return what ? html`${told} (${num(all.cordonedTaken)} ${what})` : told;
}

/** See app.js. */
export async function open(main, context) {
  const view = new FleetPage(main, context);
  await view.load();
  if (!context.alive()) return null;
  view.show();
  return view;
}

class FleetPage {
  constructor(main, { parameters, setParameters, failed, mention }) {
    this.main = main;
    this.setParameters = setParameters;
    this.failed = failed;
    this.mention = mention;
    this.fleet = new Fleet();
    this.filter = new Filter(parameters.get("q") ?? "", parameters.get("show") ?? "all");
    this.text = parameters.get("q") ?? "";
    this.by = parameters.get("by") === "namespace" ? "namespace" : "state";
    // unvalidated values of the address, to report unknown ones
    this.wrong = { show: parameters.get("show") ?? "all", by: parameters.get("by") ?? "" };
    this.card = parameters.get("card") ?? "";
    this.addressed = true;
    this.pointed = null;
    this.pointer = null; // where the pointer is, as [x, y]; null while the keyboard points
    this.chosen = null;
    this.drag = null;
    this.pads = new Map(); // touches on the picture
    this.stop = new AbortController();
    this.asked = 0;
    this.turn = 0;
    this.waiting = false; // for an answer
    this.owed = false; // whether the user is waiting for another moment
  }

  // ---- data ----

  /** Load the fleet. Returns whether nodes or device counts changed; null if the answer is outdated. */
  async load() {
    this.turn += 1;
    const mine = this.turn;
    const live = isLive();
    const after =
      live && this.live && this.fleet.revision >= 0
        ? { after: this.fleet.revision, heard: this.heard }
        : {};
    this.waiting = true;
    const [fleet, summary] = await Promise.all([
      live ? getNow("fleet", after) : get("fleet"),
      this.askSummary(live),
    ])
      .catch(problem => {
        if (mine === this.turn) throw problem;
        return [];
      })
      .finally(() => {
        if (mine === this.turn) this.waiting = false;
      });
    if (mine !== this.turn) return null;
    this.live = live;
    this.summary = summary;
    const had = this.fleet.shape;
    this.fleet.take(fleet);
    this.heard = fleet.heard ?? 0;
    const told = this.fleet.told;
    this.fleet.takeUse(fleet.used ?? []);
    if (this.painter && told !== this.fleet.told) this.legend();
    return had !== this.fleet.shape;
  }

  /** Load the summary. It counts all pods, so it is not requested at every change of a live page. */
  async askSummary(live) {
    const now = performance.now();
    if (live && this.live && now - this.summarised < SUMMARY_MS) return this.summary;
    this.summarised = now;
    return get("summary");
  }

  /** Reload. A background update that replaces a user's request also shows the error of that request. */
  async update(live) {
    this.owed ||= !live;
    let moved;
    try {
      moved = await this.load();
    } catch (problem) {
      if (!live || !this.owed) throw problem;
      this.failed(problem);
      return;
    }
    if (moved === null || this.stop.signal.aborted) return;
    this.owed = false;
    this.answer();
    if (moved) this.lay();
    this.refind();
    if (moved) this.repoint();
    this.draw();
    if (this.chosen) this.showPanel(false);
  }

  // ---- the page ----

  show() {
    mount(
      this.main,
      html`<div class="page wide fleet">
        <header class="answer">
          <h1 id="answer"></h1>
          <div class="subrow">
            <p class="sub" id="notes"></p>
            <div class="legend" id="legend"></div>
          </div>
          <p class="odd" id="odd" role="status"></p>
        </header>
        <div class="bar">
          ${searchField(this.text, this.fleet.example(), "Search by node, pool, model, ns, pod, gang or state")}
          ${segments("show", "Show", Object.entries(STATES), this.filter.show)}
          ${segments(
            "by",
            "Colour",
            [
              ["state", "By state"],
              ["namespace", "By namespace"],
            ],
            this.by,
          )}<span class="grow"></span>
          <div class="seg" role="group" aria-label="Zoom">
            <button data-zoom="-1" aria-label="Zoom out">−</button><button data-zoom="0">Fit</button
            ><button data-zoom="1" aria-label="Zoom in">+</button>
          </div>
          <details class="matches" id="matches" hidden>
            <summary id="matches-count"></summary>
            <ul id="matches-list"></ul>
          </details>
        </div>
        <div class="stage" id="stage">
          <canvas id="pixels"></canvas
          ><canvas
            id="cards"
            tabindex="0"
            role="application"
            aria-roledescription="fleet map"
            aria-label="All devices by pool. Arrow keys move, Enter opens details, Tab enters them."
            aria-describedby="hover"
          ></canvas>
          <div class="hcard" id="hover" role="status" hidden></div>
          <section class="panel" id="panel" aria-label="Details" tabindex="-1" hidden></section>
          <p class="nothing" id="nothing" hidden></p>
        </div>
      </div>`,
    );
    this.stage = $("#stage");
    this.painter = new Painter($("#pixels"), $("#cards"));
    this.painter.byNamespace = this.by === "namespace";
    this.painter.resize(this.stage);
    this.lay();
    this.answer();
    this.legend();
    this.find();
    this.drawNow();
    this.listen();
  }

  lay() {
    this.aside = null;
    this.layout = new Layout(
      this.fleet.pools,
      this.painter.width,
      this.painter.height,
      this.painter.scale,
      this.layout,
    );
  }

  answer() {
    const all = this.fleet.totals();
    const waits = (this.summary.phases.refused ?? 0) + (this.summary.phases.pending ?? 0);
    const use = all.held
      ? html` (${link("fleet", `${percent(all.used / all.held)} used`, { show: "idle" })})`
      : "";
    renew(
      $("#answer"),
      all.cards
        ? html`${link("fleet", `${num(all.granted)} of ${many(all.cards, "GPU")}`, { show: "granted" })}
          allocated${use} · ${brokenCount(all)}${cordonedCount(all)} ·
          ${waits ? link("waiting", `${num(waits)} pending`) : "0 pending"}`
        : "No GPUs reported yet",
    );
    const pods = Object.entries(this.summary.phases).reduce(
      (sum, [phase, n]) => (phase === "rejected" ? sum : sum + n),
      0,
    );
    renew(
      $("#notes"),
      [
        countLink("fleet", all.free, "free", { show: "free" }),
        this.fleet.told ? countLink("fleet", all.idle, "idle", { show: "idle" }) : "",
        all.failed ? countLink("fleet", all.failed, "failed", { q: "state:failed" }) : "",
        all.broken > all.failed
          ? countLink("fleet", all.broken - all.failed, "unreachable", { q: "state:unreached" })
          : "",
        link("pods", many(pods, "pod")),
        many(all.nodes, "node"),
      ]
        .filter(Boolean)
        .map(note => html`<span>${note}</span>`),
    );
    const nothing = $("#nothing");
    nothing.hidden = all.cards > 0;
    nothing.textContent = all.cards
      ? ""
      : "Run apportion agent on a node; its devices appear here.";
  }

  legend() {
    $("#legend").classList.toggle("filtered", this.filter.active);
    mount(
      $("#legend"),
      this.by === "state"
        ? legend([
            ...(this.fleet.told ? ["used", ["granted", "allocated"]] : ["running", "granted"]),
            "free",
            "broken",
            "cordoned",
          ])
        : namespaceLegend().map(
            ([name, colour]) =>
              html`<span><i class="sw" data-s="background:${colour}"></i>${name}</span>`,
          ),
    );
  }

  // ---- the address ----

  /** Select the device or node of the address, and bring it to the middle. */
  find() {
    const { node, card } = this.card ? this.named() : { node: this.onlyNode(), card: WHOLE };
    this.tellOdd();
    if (!node || card === undefined) return;
    this.chosen = { node, card };
    this.layout.centre(node, Math.max(0, card));
    this.showPanel(true);
    if ([document.body, this.main].includes(document.activeElement))
      $("#cards").focus({ preventScroll: true });
  }

  /** Resolve `card` of the address; `node` or `card` of the result is undefined if it does not exist. */
  named() {
    const [, name, index] = /^(.*?)(?::(\d+))?$/.exec(this.card);
    const node = this.fleet.nodes.get(name);
    const place = node?.index.indexOf(Number(index));
    return { name, index, node, card: index === undefined ? WHOLE : place < 0 ? undefined : place };
  }

  /** The node, if the filter of the address is exactly one node. */
  onlyNode() {
    const [[kind, wanted] = [], ...others] = this.filter.words;
    if (kind !== "node" || others.length) return undefined;
    return [...this.fleet.nodes.values()].find(each => each.name.toLowerCase() === wanted);
  }

  /** Report unknown names and values in the address, with the accepted ones. */
  tellOdd() {
    const said = odd(this.text, this.wrong.show, this.fleet.pools);
    if (!["", "state", "namespace"].includes(this.wrong.by))
      said.push(`Unknown colour “${this.wrong.by}”. Use by=state or by=namespace.`);
    const { name, index, node, card } = this.named();
    if (this.addressed) {
      // not while the user types, because most names are incomplete then
      const called = new Set([...this.fleet.nodes.keys()].map(each => each.toLowerCase()));
      for (const [kind, wanted] of this.filter.words)
        if (kind === "node" && !called.has(wanted)) said.push(`No node “${wanted}”.`);
    }
    if (name && !node) said.push(`No node “${name}”${isLive() ? "" : " at this time"}.`);
    else if (node && card === undefined)
      said.push(`${name} has no device ${index}. Its devices: ${node.index.join(", ")}.`);
    $("#odd").textContent = said.join(" ");
  }

  /** Find the pointed and the selected device again after an update. A closing panel returns the focus. */
  refind() {
    for (const what of ["pointed", "chosen"]) {
      const had = this[what];
      if (!had) continue;
      const node = this.fleet.nodes.get(had.node.name);
      this[what] = node && had.card < node.count ? { node, card: had.card } : null;
    }
    const { node, card } = this.named();
    if (!this.chosen && node && card !== undefined) this.chosen = { node, card }; // it is back
    if (this.chosen) return;
    if ($("#panel").contains(document.activeElement)) $("#cards").focus({ preventScroll: true });
    $("#panel").hidden = true;
  }

  // ---- drawing ----

  draw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      if (!this.stop.signal.aborted) this.drawNow();
    });
  }

  drawNow() {
    this.painter.draw(this.layout, this.filter, this.fleet.told);
    this.overlay();
    this.list();
  }

  overlay() {
    this.painter.overlay(this.layout, this.pointed, this.chosen);
  }

  /** List the matches of the filter as text, for users who cannot see the picture. */
  list() {
    const box = $("#matches");
    box.hidden = !this.filter.active;
    if (!this.filter.active) return;
    let total = 0;
    const rows = [];
    for (const pool of this.fleet.pools) {
      for (const node of pool.nodes) {
        this.filter.of(node).forEach((meant, card) => {
          if (!meant) return;
          total += 1;
          if (rows.length < MATCHES_SHOWN && box.open)
            rows.push(
              html`<li>
                ${link(
                  "fleet",
                  `${node.name} device ${node.index[card]}`,
                  {
                    card: `${node.name}:${node.index[card]}`,
                    q: this.text,
                    show: this.filter.show === "all" ? "" : this.filter.show,
                  },
                  "m",
                )}
                <span class="faint">${stateWords(node, card)}</span>
              </li>`,
            );
        });
      }
    }
    $("#matches-count").textContent = total ? many(total, "GPU") : "No matches";
    if (box.open)
      renew($("#matches-list"), [
        ...rows,
        total > rows.length
          ? html`<li class="faint">and ${num(total - rows.length)} more</li>`
          : "",
      ]);
  }

  theme() {
    this.painter.colours = palette();
    this.draw();
  }

  // ---- pointing and selecting ----

  listen() {
    const { signal } = this.stop;
    const on = (target, kind, act, options = {}) =>
      target.addEventListener(kind, act, { signal, ...options });
    const canvas = $("#cards");
    on(canvas, "pointermove", event => this.move(event));
    on(canvas, "pointerdown", event => this.press(event, canvas));
    on(canvas, "pointerup", event => this.release(event));
    on(canvas, "pointercancel", event => {
      this.pads.delete(event.pointerId);
      this.drag = null;
    });
    on(canvas, "pointerleave", () => {
      this.pointer = null;
      this.point(null);
    });
    on(
      canvas,
      "wheel",
      event => {
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? 1 : -1, ...this.spot(event));
      },
      { passive: false },
    );
    on(canvas, "keydown", event => this.key(event));
    on($("#panel"), "click", event => this.press_panel(event));
    on($("#matches"), "toggle", () => this.list());
    on(this.main, "click", event => this.press_button(event));
    on($("#q"), "input", event => this.setFilter(event.target.value, this.filter.show));
    const sizes = new ResizeObserver(() => {
      if (this.painter.resize(this.stage)) {
        this.lay();
        this.repoint();
        this.drawNow();
      }
    });
    sizes.observe(this.stage);
    signal.addEventListener("abort", () => sizes.disconnect());
    const samples = setInterval(() => {
      if (isLive() && !document.hidden && !this.waiting) this.update(true).catch(this.mention);
    }, SAMPLES_MS);
    signal.addEventListener("abort", () => clearInterval(samples));
  }

  press_button(event) {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.show) this.setFilter(this.text, button.dataset.show);
    else if (button.dataset.by) this.colourBy(button.dataset.by);
    else if (button.dataset.zoom === "0") {
      this.aside = null;
      this.layout.fit();
      this.repoint();
      this.draw();
    } else if (button.dataset.zoom) this.zoom(Number(button.dataset.zoom));
  }

  press_panel(event) {
    const other = event.target.closest("[data-choose]");
    if (event.target.closest(".x")) this.choose(null);
    else if (other && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      const { node } = this.chosen;
      this.choose({
        node,
        card:
          Array.from({ length: node.count }, (_, card) => card).find(
            card => cardName(node, card) === other.dataset.choose,
          ) ?? WHOLE,
      });
    } else copyFrom(event);
  }

  setFilter(text, show) {
    this.text = text;
    this.wrong.show = show;
    this.addressed = false;
    this.filter.set(text, show);
    this.setParameters({
      q: text.trim(),
      show: this.filter.show === "all" ? "" : this.filter.show,
    });
    for (const button of $$("[data-show]", this.main))
      button.setAttribute("aria-pressed", String(button.dataset.show === this.filter.show));
    $("#legend").classList.toggle("filtered", this.filter.active);
    this.tellOdd();
    this.draw();
  }

  colourBy(by) {
    this.by = this.wrong.by = by;
    this.painter.byNamespace = by === "namespace";
    this.setParameters({ by: by === "state" ? "" : by });
    for (const button of $$("[data-by]", this.main))
      button.setAttribute("aria-pressed", String(button.dataset.by === by));
    this.legend();
    this.draw();
  }

  zoom(steps, x, y) {
    this.aside = null;
    this.layout.zoomBy(steps, x, y);
    this.repoint();
    this.draw();
  }

  /** After the picture has moved: point at what is under the pointer now, or follow the keyboard's device. */
  repoint() {
    if (this.pointer) {
      this.point(this.layout.at(...this.pointer), ...this.pointer);
      return;
    }
    if (!this.pointed) return;
    const box = this.layout.boxOf(this.pointed.node, this.pointed.card);
    const { width, height } = this.painter;
    const isSeen = box && box.x >= 0 && box.x < width && box.y >= 0 && box.y < height;
    if (isSeen) this.point(this.pointed, box.x + box.width, box.y);
    else this.point(null);
  }

  /** The position of the pointer in pixels of the canvas. */
  spot(event) {
    const box = this.stage.getBoundingClientRect();
    return [
      (event.clientX - box.left) * this.painter.scale,
      (event.clientY - box.top) * this.painter.scale,
    ];
  }

  press(event, canvas) {
    const [x, y] = this.spot(event);
    this.pads.set(event.pointerId, [x, y]);
    canvas.setPointerCapture(event.pointerId);
    this.drag = { x, y, left: this.layout.left, top: this.layout.top, moved: this.pads.size > 1 };
  }

  move(event) {
    const [x, y] = this.spot(event);
    this.pointer = [x, y];
    if (this.pads.size === 2 && this.pads.has(event.pointerId)) {
      this.pinch(event.pointerId, x, y);
      return;
    }
    if (this.drag) {
      this.drag.moved ||= Math.hypot(x - this.drag.x, y - this.drag.y) > 4 * this.painter.scale;
      if (!this.drag.moved) return;
      this.aside = null;
      this.layout.left = Math.round(this.drag.left + x - this.drag.x);
      this.layout.top = Math.round(this.drag.top + y - this.drag.y);
      this.point(null);
      this.draw();
      return;
    }
    this.point(this.layout.at(x, y), x, y);
  }

  /** Zoom by a step whenever the distance of two fingers has changed by a quarter. */
  pinch(id, x, y) {
    const [other] = [...this.pads].filter(([each]) => each !== id).map(([, spot]) => spot);
    const before = Math.hypot(this.pads.get(id)[0] - other[0], this.pads.get(id)[1] - other[1]);
    const now = Math.hypot(x - other[0], y - other[1]);
    if (Math.abs(now / before - 1) < 0.25) return;
    this.pads.set(id, [x, y]);
    this.zoom(now > before ? 1 : -1, (x + other[0]) / 2, (y + other[1]) / 2);
  }

  release(event) {
    const { drag } = this;
    this.pads.delete(event.pointerId);
    this.drag = null;
    if (drag && !drag.moved) this.choose(this.layout.at(...this.spot(event)));
  }

  point(at, x = 0, y = 0) {
    const same = at?.node === this.pointed?.node && at?.card === this.pointed?.card;
    this.pointed = at;
    const card = $("#hover");
    card.hidden = !at;
    if (!same) {
      this.overlay();
      if (at)
        mount(
          card,
          html`${facts(at.node, at.card)}
            <p class="faint hint"><kbd>Click</kbd> for details</p>`,
        );
    }
    if (at) this.placeHover(card, x / this.painter.scale, y / this.painter.scale);
  }

  placeHover(card, x, y) {
    const room = this.stage.clientWidth;
    const left = x + 18 + HOVER_WIDTH > room ? Math.max(8, x - HOVER_WIDTH - 14) : x + 18;
    const top = Math.min(Math.max(8, y - 20), this.stage.clientHeight - card.offsetHeight - 8);
    card.style.transform = `translate(${left}px, ${top}px)`;
  }

  choose(at) {
    const within = $("#panel").contains(document.activeElement);
    this.chosen = at;
    this.card = at ? cardName(at.node, at.card) : "";
    this.setParameters({ card: this.card });
    $("#hover").hidden = true;
    this.tellOdd();
    if (!at) this.uncover(null);
    this.overlay();
    this.showPanel(true);
    if (within && !at) $("#cards").focus({ preventScroll: true });
  }

  /** Show the panel of the selection; `isNew` if the selection has changed. */
  async showPanel(isNew) {
    const { chosen } = this;
    $("#panel").hidden = !chosen;
    if (!chosen) return;
    if (isNew) this.more = null;
    this.drawPanel(isNew);
    const live = isLive();
    const revision = live ? this.fleet.revision : moment.revision;
    if (this.more?.revision === revision) return;
    const answer = await orNone(ask(chosen.node, chosen.card));
    if (!answer) return; // no such node at this time: the panel closes when the fleet has loaded
    const more = { ...answer, revision };
    const late =
      live !== isLive() || (live ? this.more?.revision > revision : moment.revision !== revision);
    if (
      late ||
      this.stop.signal.aborted ||
      this.chosen?.node.name !== chosen.node.name ||
      this.chosen.card !== chosen.card
    )
      return;
    const first = !this.more; // an update may answer before the request of the selection
    this.more = more;
    this.drawPanel(isNew || first);
  }

  drawPanel(isNew) {
    const element = $("#panel");
    renew(element, panel(this.chosen.node, this.chosen.card, this.more));
    if (!isNew) return;
    if (!this.more) element.scrollTop = 0;
    this.uncover(element);
  }

  /** Move the picture so that the panel does not cover its own device, and back when it closes. */
  uncover(element) {
    const {
      layout,
      painter: { scale },
    } = this;
    if (this.aside) {
      layout.left -= this.aside[0];
      layout.top -= this.aside[1];
      this.aside = null;
    }
    const box = element && layout.boxOf(this.chosen.node, this.chosen.card);
    if (box) {
      const margin = 12 * scale;
      const [left, top] = [element.offsetLeft * scale - margin, element.offsetTop * scale - margin];
      const [across, down] = [box.x + box.width - left, box.y + box.height - top];
      const wide = element.offsetLeft > this.stage.clientWidth / 2;
      if (across > 0 && down > 0 && box.y < top + element.offsetHeight * scale + margin)
        this.aside = wide ? [-Math.round(across), 0] : [0, -Math.round(down)];
      if (this.aside) {
        layout.left += this.aside[0];
        layout.top += this.aside[1];
      }
    }
    this.draw();
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ];
    if (steps && !event.shiftKey) {
      event.preventDefault();
      const next = this.neighbour(...steps);
      if (!next) return;
      const box = this.layout.boxOf(next.node, next.card);
      this.pointer = null;
      this.point(next, box.x + box.width, box.y);
    } else if (event.key === "Enter" && this.pointed) {
      event.stopPropagation();
      this.choose(this.pointed);
    }
  }

  /** The next device in a direction: left and right within the pool, up and down by node. */
  neighbour(across, down) {
    const from = this.pointed ?? this.chosen;
    const first = this.fleet.pools[0]?.nodes[0];
    if (!from) return first?.count ? { node: first, card: 0 } : null;
    const { node } = from;
    let place = node.place + down;
    let card = from.card === WHOLE && !across ? 0 : from.card + across;
    if (card < 0 && from.card !== WHOLE) {
      place -= 1;
      card = Infinity;
    }
    if (card >= node.count && across > 0) {
      place += 1;
      card = 0;
    }
    const next = node.home.nodes[place] ?? null;
    return next?.count ? { node: next, card: Math.max(0, Math.min(card, next.count - 1)) } : from;
  }

  close() {
    this.stop.abort();
    cancelAnimationFrame(this.asked);
  }
}
