// The fleet as rows of numbers: every node with its cards and who holds what of them.
//
// It takes the gateway's packed rows (core/explain/fleet_rows.py has their fields) and lays them out so
// that one pass over a node draws it: shares lie card by card, `start[card]` to `start[card + 1]`.
// A row takes the place of the one before, so what changed costs what changed. Pure: no page, no DOM.
import { byName, num, poolWords, shortModel } from "../format.js";
import { meetNamespaces, namespacePlace } from "../colours.js";
import { listed } from "../parts.js";

export const FAILED = 1;
export const CORDONED = 2;
export const ABSENT = 4;
export const UNREADY = 8;
export const BROKEN = FAILED | ABSENT | UNREADY;
/** In the place of a card: its node as a whole. */
export const WHOLE = -1;
const IDLE_BELOW = 0.05;
const EXAMPLE_CHARS = 26;

/** One node out of its packed row. */
export function unpack(row) {
  const [name, pool, ready, cordon, models, cards, notes, pods, cordons, hardware = []] = row;
  const count = cards.length / 3;
  const state = new Array(count);
  const index = new Array(count);
  const model = new Array(count);
  for (let card = 0; card < count; card += 1) {
    index[card] = cards[3 * card];
    model[card] = models[cards[3 * card + 1]];
    state[card] = cards[3 * card + 2] | (cordon ? CORDONED : 0) | (ready ? 0 : UNREADY);
  }
  const found = [];
  pods.forEach(([namespace, , phase, shares], pod) => {
    for (let at = 0; at < shares.length; at += 3) {
      found.push([
        shares[at],
        shares[at + 1] / Math.max(1, model[shares[at]][1]),
        pod,
        namespacePlace(namespace),
        phase === "allocated" ? 1 : 0,
      ]);
    }
  });
  found.sort((a, b) => a[0] - b[0] || a[2] - b[2]);
  const start = new Array(count + 1).fill(0);
  for (const [card] of found) start[card + 1] += 1;
  for (let card = 0; card < count; card += 1) start[card + 1] += start[card];
  return {
    name,
    pool,
    hardware: hardware.map(([many, place, mode]) => ({
      count: many,
      model: models[place][0],
      mode,
    })), // an older gateway names the pool alone
    ready: Boolean(ready),
    cordon,
    notes,
    cordons,
    count,
    state,
    index,
    model,
    start,
    pods: pods.map(([namespace, pod, phase, , gang = ""]) => ({
      namespace,
      name: pod,
      phase,
      gang,
    })), // an older gateway tells no gang
    memory: found.map(share => share[1]), // parts of the card
    holder: found.map(share => share[2]), // places in `pods`
    colour: found.map(share => share[3]), // places among the namespaces' colours
    running: found.map(share => share[4]), // whether the agent has handed it out
    used: found.map(() => -1), // parts of the card; -1: nobody says
    match: null,
  };
}

export class Fleet {
  constructor() {
    this.nodes = new Map();
    this.pools = [];
    this.revision = -1;
    this.shape = 0; // grows whenever nodes or numbers of cards have changed, and places with them
    this.told = false; // whether anybody says what is used
    this.uses = new Map();
  }

  /** Take an answer of `fleet`: the whole, or what changed. */
  take(answer) {
    if (answer.whole) {
      this.nodes = new Map();
      this.uses = new Map();
      this.told = false;
    }
    meetNamespaces(answer.nodes.flatMap(row => row[7].map(pod => pod[0])));
    let moved = answer.whole;
    for (const row of answer.nodes) {
      const node = unpack(row);
      const before = this.nodes.get(node.name);
      if (!before || before.pool !== node.pool || before.count !== node.count) moved = true;
      this.nodes.set(node.name, node);
      this.use(node);
    }
    for (const name of answer.gone) moved = this.nodes.delete(name) || moved;
    this.revision = answer.revision;
    if (moved) this.arrange();
    else for (const row of answer.nodes) this.replace(this.nodes.get(row[0]));
    for (const pool of this.pools)
      if (pool.held === null) Object.assign(pool, { held: heldOf(pool), models: modelsOf(pool) });
    return moved;
  }

  /** Take how busy nodes say that their shares are: a pod, the index of its card, a part of 1. */
  takeUse(rows) {
    for (const [name, shares] of rows) {
      this.uses.set(name, new Map(shares.map(([pod, card, busy]) => [`${pod}\n${card}`, busy])));
      const node = this.nodes.get(name);
      if (node) this.use(node);
    }
    if (rows.length) this.told = [...this.uses.values()].some(shares => shares.size > 0);
  }

  use(node) {
    const said = this.uses.get(node.name);
    if (!said) return;
    for (let card = 0; card < node.count; card += 1) {
      for (let at = node.start[card]; at < node.start[card + 1]; at += 1) {
        const pod = node.pods[node.holder[at]];
        const busy = said.get(`${pod.namespace}/${pod.name}\n${node.index[card]}`);
        node.used[at] = busy === undefined ? -1 : busy * node.memory[at];
      }
    }
  }

  /** Pools by size, nodes in each by name: a card keeps its place as long as the fleet does. */
  arrange() {
    const pools = new Map();
    for (const node of this.nodes.values()) {
      if (!pools.has(node.pool))
        pools.set(node.pool, {
          name: node.pool,
          hardware: node.hardware,
          nodes: [],
          cards: 0,
          width: 1,
          held: null,
          models: [],
        });
      const pool = pools.get(node.pool);
      pool.nodes.push(node);
      pool.cards += node.count;
      pool.width = Math.max(pool.width, node.count);
    }
    this.pools = [...pools.values()].sort((a, b) => b.cards - a.cards || byName(a.name, b.name));
    for (const pool of this.pools) {
      pool.nodes.sort((a, b) => byName(a.name, b.name));
      pool.nodes.forEach((node, at) => {
        node.home = pool;
        node.place = at;
      });
    }
    this.shape += 1;
  }

  replace(node) {
    const pool = this.pools.find(each => each.name === node.pool);
    const at = this.findIn(pool, node.name);
    node.home = pool;
    node.place = at;
    pool.nodes[at] = node;
    pool.held = null;
  }

  findIn(pool, name) {
    let [low, high] = [0, pool.nodes.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (byName(pool.nodes[middle].name, name) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Words that find cards here: of the first node with a pod, as many as a field shows. */
  example() {
    const nodes = this.pools.flatMap(pool => pool.nodes);
    const node = nodes.find(each => each.pods.length > 0) ?? nodes[0];
    if (!node) return "";
    const words = [`node:${node.name}`, ...node.pods.slice(0, 1).map(pod => `ns:${pod.namespace}`)];
    return [words.join("  "), words[0]].find(each => each.length <= EXAMPLE_CHARS) ?? "";
  }

  /**
   * How many cards are what, over all nodes. A card can be more than one: of the broken those that
   * are granted are `brokenTaken`, of the cordoned those that are granted or broken `cordonedTaken`,
   * so that granted, broken and cordoned without these, and free come to all cards. `cordonedHeld` and
   * `cordonedBroken` say which of the two they are.
   */
  totals() {
    const sum = {
      cards: 0,
      granted: 0,
      free: 0,
      broken: 0,
      failed: 0,
      brokenTaken: 0,
      cordoned: 0,
      cordonedTaken: 0,
      cordonedHeld: 0,
      cordonedBroken: 0,
      idle: 0,
      memory: 0,
      held: 0,
      used: 0,
      nodes: this.nodes.size,
    };
    for (const node of this.nodes.values()) {
      for (let card = 0; card < node.count; card += 1) {
        const held = granted(node, card);
        const mib = node.model[card][1];
        sum.cards += 1;
        sum.memory += mib;
        if (held > 0) sum.granted += 1;
        if (isFree(node, card)) sum.free += 1;
        const broken = isBroken(node, card);
        if (broken) sum.broken += 1;
        if (node.state[card] & FAILED) sum.failed += 1;
        if (broken && held > 0) sum.brokenTaken += 1;
        if (node.state[card] & CORDONED) {
          sum.cordoned += 1;
          if (broken || held > 0) sum.cordonedTaken += 1;
          if (held > 0) sum.cordonedHeld += 1;
          if (broken) sum.cordonedBroken += 1;
        }
        const use = used(node, card);
        if (use >= 0) {
          sum.held += held * mib;
          sum.used += use * mib;
        }
        if (isIdle(node, card)) sum.idle += 1;
      }
    }
    return sum;
  }
}

/** The models of a pool's cards, as people say them; none where its name says the same. */
function modelsOf(pool) {
  if (pool.hardware.length) return [];
  const models = new Set(pool.nodes.flatMap(node => node.model.map(([model]) => model)));
  return [...models].map(shortModel).filter(model => !pool.name.includes(model));
}

/** How many cards' worth of a pool is granted. */
function heldOf(pool) {
  let held = 0;
  for (const node of pool.nodes)
    for (let card = 0; card < node.count; card += 1) held += Math.min(1, granted(node, card));
  return held;
}

/** What of a card is granted, as a part. */
export function granted(node, card) {
  let sum = 0;
  for (let at = node.start[card]; at < node.start[card + 1]; at += 1)
    sum += node.memory[at] || 1e-6;
  return sum;
}

/** What of a card is used, as a part; -1 where nobody says. */
export function used(node, card) {
  let sum = 0;
  let told = false;
  for (let at = node.start[card]; at < node.start[card + 1]; at += 1) {
    if (node.used[at] >= 0) {
      sum += node.used[at];
      told = true;
    }
  }
  return told ? sum : -1;
}

const isBroken = (node, card) => (node.state[card] & BROKEN) !== 0;

export const isFree = (node, card) =>
  node.start[card] === node.start[card + 1] && node.state[card] === 0;

/** Granted, and hardly used by what is said. */
export function isIdle(node, card) {
  const use = used(node, card);
  return use >= 0 && use < IDLE_BELOW * granted(node, card);
}

/** One word for a card. */
export function stateOf(node, card) {
  if (isBroken(node, card)) return "broken";
  if (node.state[card] & CORDONED) return "cordoned";
  return node.start[card] === node.start[card + 1] ? "free" : "granted";
}

/** The same, with what is the matter with a broken card: it failed itself, or nobody hears of it. */
export function stateWords(node, card) {
  const word = stateOf(node, card);
  return word !== "broken" ? word : node.state[card] & FAILED ? "failed" : "out of reach";
}

// ---- which cards are meant: words as in `node:h100-115 ns:serving state:broken`, and one state to show ----
//
// A node keeps the answer for its cards until it or the filter changes.

export const STATES = ["all", "free", "granted", "idle", "broken", "cordoned"];
export const KINDS = ["node", "pool", "model", "state", "ns", "pod", "gang"];
const POOLS_SAID = 6;
const OTHER_STATES = ["failed", "unreached"];

/** The words of a filter, as pairs of what they are about and what is wanted. */
export function filterWords(text) {
  return text
    .trim()
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .map(word => {
      const [kind, ...rest] = word.split(":");
      return KINDS.includes(kind) && rest.length ? [kind, rest.join(":")] : ["", word];
    });
}

/** What of a text means no card by itself: a kind, a state or one of the `pools` that there is not. In sentences. */
export function odd(text, show = "all", pools = []) {
  const said = [];
  const states = [...STATES.slice(1), ...OTHER_STATES];
  for (const [kind, wanted] of filterWords(text)) {
    if (kind === "state" && !states.includes(wanted))
      said.push(`No state is called “${wanted}”; ${listed(states)} are.`);
    if (kind === "pool" && pools.length && !pools.some(pool => isOfPool(pool.name, wanted)))
      said.push(`No pool is called “${wanted}”; ${poolsSaid(pools)}.`);
    if (!kind && wanted.includes(":"))
      said.push(
        `No words begin with “${wanted.split(":")[0]}:”; ${listed(KINDS.map(each => `${each}:`))} do.`,
      );
  }
  if (!STATES.includes(show))
    said.push(`No state to show is called “${show}”; ${listed(STATES)} are.`);
  return said;
}

const isOfPool = (name, wanted) => name.toLowerCase().includes(wanted);

/** The first names of pools, as the picture has them. */
function poolsSaid(pools) {
  const names = pools.slice(0, POOLS_SAID).map(poolWords);
  const left = pools.length - names.length;
  return `${listed(left ? [...names, `${num(left)} more`] : names)} ${pools.length === 1 ? "is" : "are"}`;
}

export class Filter {
  constructor(text = "", show = "all") {
    this.set(text, show);
  }

  set(text, show) {
    this.show = STATES.includes(show) ? show : "all";
    this.words = filterWords(text);
    this.active = this.words.length > 0 || this.show !== "all";
    this.key = {}; // another object for another filter
  }

  /** For each card of the node 1 where it is meant, else 0. */
  of(node) {
    if (node.match?.key !== this.key) {
      const cards = new Uint8Array(node.count);
      for (let card = 0; card < node.count; card += 1) cards[card] = this.means(node, card) ? 1 : 0;
      node.match = { key: this.key, cards };
    }
    return node.match.cards;
  }

  means(node, card) {
    return (
      inState(node, card, this.show) &&
      this.words.every(([kind, wanted]) => meets(node, card, kind, wanted))
    );
  }
}

function inState(node, card, state) {
  switch (state) {
    case "broken":
      return (node.state[card] & BROKEN) !== 0;
    case "failed":
      return (node.state[card] & FAILED) !== 0;
    case "unreached":
      return (node.state[card] & BROKEN) !== 0 && !(node.state[card] & FAILED);
    case "cordoned":
      return (node.state[card] & CORDONED) !== 0;
    case "free":
      return isFree(node, card);
    case "granted":
      return node.start[card] < node.start[card + 1];
    case "idle":
      return isIdle(node, card);
    default:
      return state === "all";
  }
}

function anyHeld(node, card, test) {
  for (let at = node.start[card]; at < node.start[card + 1]; at += 1)
    if (test(node.pods[node.holder[at]])) return true;
  return false;
}

function meets(node, card, kind, wanted) {
  const name = node.name.toLowerCase();
  switch (kind) {
    case "node":
      return name === wanted;
    case "pool":
      return isOfPool(node.pool, wanted);
    case "model":
      return node.model[card][0].toLowerCase().includes(wanted);
    case "state":
      return inState(node, card, wanted);
    case "ns":
      return anyHeld(node, card, pod => pod.namespace === wanted);
    case "gang":
      return anyHeld(node, card, pod => pod.gang.includes(wanted));
    case "pod":
      return anyHeld(node, card, pod => `${pod.namespace}/${pod.name}`.includes(wanted));
    default:
      return (
        name.includes(wanted) ||
        node.pool.toLowerCase().includes(wanted) ||
        anyHeld(node, card, pod => `${pod.namespace}/${pod.name}`.includes(wanted))
      );
  }
}
