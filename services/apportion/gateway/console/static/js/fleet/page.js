// Fleet: every card of every node in one picture. How much is granted, used, broken, cordoned?
//
// Invariant: only the answer to the newest question is taken, so one that tells changes meets what it was
// asked after, and the past never stands there as now.
import { get, getNow } from "../api.js";
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
const SAMPLES_MS = 5000; // what is used changes without an event

/** How many are broken, why, and how many of those are among the granted: so that counts add up. */
function brokenCount(all) {
  const told = countLink(
    "fleet",
    all.broken,
    "broken",
    { show: "broken" },
    all.broken ? "c-bad" : "",
  );
  if (!all.broken) return told;
  const unreached = all.broken - all.failed;
  const why =
    all.failed && unreached
      ? html`${countLink("fleet", all.failed, "failed", { q: "state:failed" })},
        ${countLink("fleet", unreached, "out of reach", { q: "state:unreached" })}`
      : all.failed
        ? "failed"
        : "out of reach";
  return html`${told}
  (${why}${asWell("; ", all.brokenTaken, all.broken, "granted", { q: "state:broken", show: "granted" })})`;
}

function cordonedCount(all) {
  const told = countLink("fleet", all.cordoned, "cordoned", { show: "cordoned" });
  const what = [all.cordonedHeld ? "granted" : "", all.cordonedBroken ? "broken" : ""]
    .filter(Boolean)
    .join(" or ");
  return what ? html`${told} (${asWell("", all.cordonedTaken, all.cordoned, what)})` : told;
}

function asWell(before, taken, all, what, parameters) {
  if (!taken) return "";
  const words = taken < all ? `${num(taken)} of them` : all > 1 ? "all" : "";
  const said = `${words} ${what} as well`.trim();
  return html`${before}${parameters ? link("fleet", said, parameters) : said}`;
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
    // of the address, until it is another
    this.wrong = { show: parameters.get("show") ?? "all", by: parameters.get("by") ?? "" };
    this.card = parameters.get("card") ?? "";
    this.addressed = true;
    this.pointed = null;
    this.chosen = null;
    this.drag = null;
    this.pads = new Map(); // fingers on the picture
    this.stop = new AbortController();
    this.asked = 0;
    this.turn = 0;
    this.waiting = false; // for an answer
    this.owed = false; // another moment, to somebody who asked for it
  }

  // ---- what is known ----

  /** Whether nodes or numbers of cards have changed; null where the answer comes too late. */
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

  /** It counts all pods, so while the page is live it is not asked with every change. */
  async askSummary(live) {
    const now = performance.now();
    if (live && this.live && now - this.summarised < SUMMARY_MS) return this.summary;
    this.summarised = now;
    return get("summary");
  }

  /**
   * What is asked because something is new takes the place of what somebody asked for, and says in
   * that as well why there is no answer.
   */
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
          ${searchField(this.text, this.fleet.example(), "Find cards by node, pool, model, ns, pod, gang or state")}
          ${segments(
            "show",
            "Show only",
            STATES.map(state => [state, state]),
            this.filter.show,
          )}
          ${segments(
            "by",
            "Colour by",
            [
              ["state", "by state"],
              ["namespace", "by namespace"],
            ],
            this.by,
          )}<span class="grow"></span>
          <div class="seg" role="group" aria-label="Zoom">
            <button data-zoom="-1" aria-label="Zoom out">−</button><button data-zoom="0">fit</button
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
            aria-roledescription="picture of all cards"
            aria-label="Every card of the fleet, by pool. Arrows go from card to card, Enter opens one, Tab goes into what is open."
            aria-describedby="hover"
          ></canvas>
          <div class="hcard" id="hover" role="status" hidden></div>
          <section
            class="panel"
            id="panel"
            aria-label="What is chosen"
            tabindex="-1"
            hidden
          ></section>
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
    );
  }

  answer() {
    const all = this.fleet.totals();
    const waits = (this.summary.phases.refused ?? 0) + (this.summary.phases.pending ?? 0);
    const use = all.held
      ? html`, ${link("fleet", percent(all.used / all.held), { show: "idle" })} of that is used`
      : "";
    renew(
      $("#answer"),
      all.cards
        ? html`${link("fleet", `${num(all.granted)} of ${many(all.cards, "card")}`, { show: "granted" })}
          ${all.granted === 1 ? "is" : "are"} granted${use}; ${brokenCount(all)},
          ${cordonedCount(all)}.
          ${waits ? html`${link("waiting", many(waits, "pod"))} ${waits === 1 ? "waits" : "wait"}.` : "Nobody waits."}`
        : "No node has reported a card yet.",
    );
    const pods = Object.entries(this.summary.phases).reduce(
      (sum, [phase, n]) => (phase === "rejected" ? sum : sum + n),
      0,
    );
    renew(
      $("#notes"),
      [
        countLink("fleet", all.free, all.free === 1 ? "card free" : "cards free", { show: "free" }),
        this.fleet.told ? countLink("fleet", all.idle, "granted but idle", { show: "idle" }) : "",
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
      : "Start an agent on a node (apportion agent), and its cards appear here.";
  }

  legend() {
    mount(
      $("#legend"),
      this.by === "state"
        ? legend([this.fleet.told ? "used" : "running", "granted", "free", "broken", "cordoned"])
        : namespaceLegend().map(
            ([name, colour]) =>
              html`<span><i class="sw" data-s="background:${colour}"></i>${name}</span>`,
          ),
    );
  }

  // ---- what the address asks for ----

  /** The card or the node that the address names, brought into the middle; the keyboard goes on from there. */
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

  /** What `card` of the address is called, and is here: without a `node` or a `card` there is no such thing. */
  named() {
    const [, name, index] = /^(.*?)(?::(\d+))?$/.exec(this.card);
    const node = this.fleet.nodes.get(name);
    const place = node?.index.indexOf(Number(index));
    return { name, index, node, card: index === undefined ? WHOLE : place < 0 ? undefined : place };
  }

  /** The node of an address that asks for the cards of one alone. */
  onlyNode() {
    const [[kind, wanted] = [], ...others] = this.filter.words;
    if (kind !== "node" || others.length) return undefined;
    return [...this.fleet.nodes.values()].find(each => each.name.toLowerCase() === wanted);
  }

  /** What of the address means nothing here is said, and what would. */
  tellOdd() {
    const said = odd(this.text, this.wrong.show, this.fleet.pools);
    if (!["", "state", "namespace"].includes(this.wrong.by))
      said.push(
        `Cards are not coloured by “${this.wrong.by}”; by=state and by=namespace are there.`,
      );
    const { name, index, node, card } = this.named();
    if (this.addressed) {
      // and not written just now, when most names are not whole yet
      const called = new Set([...this.fleet.nodes.keys()].map(each => each.toLowerCase()));
      for (const [kind, wanted] of this.filter.words)
        if (kind === "node" && !called.has(wanted)) said.push(`No node is called “${wanted}”.`);
    }
    if (name && !node)
      said.push(`No node is called “${name}”${isLive() ? "" : " at this moment"}.`);
    else if (node && card === undefined)
      said.push(`${name} has no card ${index}; its cards are ${node.index.join(", ")}.`);
    $("#odd").textContent = said.join(" ");
  }

  /**
   * Rows were replaced: what is pointed at and chosen is found again by name; a panel that goes
   * leaves the keyboard to the picture.
   */
  refind() {
    for (const what of ["pointed", "chosen"]) {
      const had = this[what];
      if (!had) continue;
      const node = this.fleet.nodes.get(had.node.name);
      this[what] = node && had.card < node.count ? { node, card: had.card } : null;
    }
    const { node, card } = this.named();
    if (!this.chosen && node && card !== undefined) this.chosen = { node, card }; // it is there again
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

  /** The cards that a filter means, as text: for whoever cannot see the picture. */
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
                  `${node.name} card ${node.index[card]}`,
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
    $("#matches-count").textContent = total ? many(total, "card") : "No card";
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

  // ---- pointing and choosing ----

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
    on(canvas, "pointerleave", () => this.point(null));
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
    this.draw();
  }

  /** Where the pointer is, in pixels of the canvas. */
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

  /** Two fingers: a step of zoom for every quarter that their distance grows or shrinks. */
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
            <p class="faint hint"><kbd>click</kbd> keeps it open</p>`,
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

  /** `anew`: another card; else what is known of the same one is drawn again. */
  async showPanel(anew) {
    const { chosen } = this;
    $("#panel").hidden = !chosen;
    if (!chosen) return;
    if (anew) this.more = null;
    this.drawPanel(anew);
    const live = isLive();
    const revision = live ? this.fleet.revision : moment.revision;
    if (this.more?.revision === revision) return;
    const more = { ...(await ask(chosen.node, chosen.card)), revision };
    const late =
      live !== isLive() || (live ? this.more?.revision > revision : moment.revision !== revision);
    if (
      late ||
      this.stop.signal.aborted ||
      this.chosen?.node.name !== chosen.node.name ||
      this.chosen.card !== chosen.card
    )
      return;
    this.more = more;
    this.drawPanel(anew);
  }

  drawPanel(anew) {
    const element = $("#panel");
    renew(element, panel(this.chosen.node, this.chosen.card, this.more));
    if (!anew) return;
    if (!this.more) element.scrollTop = 0;
    this.uncover(element);
  }

  /** A panel lies over no card that it tells of: the picture moves away below it, and back when it closes. */
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
      this.point(next, box.x + box.width, box.y);
    } else if (event.key === "Enter" && this.pointed) {
      event.stopPropagation();
      this.choose(this.pointed);
    }
  }

  /** The card beside the one that is pointed at: left and right within the pool, up and down by node. */
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
