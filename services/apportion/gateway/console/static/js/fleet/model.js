// The fleet as rows of numbers: nodes with their devices and shares, and the filter for devices.
//
// The gateway's packed rows (see core/explain/fleet_rows.py) are unpacked so that one pass over a node draws
// it: the shares of a device are `start[card]` to `start[card + 1]`. A changed node replaces its row, so the
// cost of an update depends only on what changed. Pure: no DOM.
import { byName, num, poolWords, shortModel } from "../format.js";
import { meetNamespaces, namespacePlace } from "../colours.js";
import { either } from "../parts.js";

export const FAILED = 1;
export const CORDONED = 2;
export const ABSENT = 4;
export const UNREADY = 8;
export const BROKEN = FAILED | ABSENT | UNREADY;
/** Stands for a whole node where a device index is expected. */
export const WHOLE = -1;
const IDLE_BELOW = 0.05;
const EXAMPLE_CHARS = 26;

/** Unpack the row of a node. */
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
    })), // older gateways only have the name of the pool
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
    })), // older gateways have no gang
    memory: found.map(share => share[1]), // as a fraction of the device
    holder: found.map(share => share[2]), // index in `pods`
    colour: found.map(share => share[3]), // index of the namespace's colour
    running: found.map(share => share[4]), // whether the agent has handed it out
    used: found.map(() => -1), // as a fraction of the device; -1 if unknown
    match: null,
  };
}

export class Fleet {
  constructor() {
    this.nodes = new Map();
    this.pools = [];
    this.revision = -1;
    this.shape = 0; // increases whenever nodes or device counts change, and positions with them
    this.told = false; // whether any node reports utilization
    this.uses = new Map();
  }

  /** Apply an answer of `fleet`, the whole fleet or changed nodes. Returns whether positions changed. */
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

  /** Apply the utilization of shares, as rows of pod, device index and a fraction of 1. */
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

  /** Sort pools by size and their nodes by name, so that positions are stable. */
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

  /** An example for the search field, from the first node with a pod. */
  example() {
    const nodes = this.pools.flatMap(pool => pool.nodes);
    const node = nodes.find(each => each.pods.length > 0) ?? nodes[0];
    if (!node) return "";
    const words = [`node:${node.name}`, ...node.pods.slice(0, 1).map(pod => `ns:${pod.namespace}`)];
    return [words.join("  "), words[0]].find(each => each.length <= EXAMPLE_CHARS) ?? "";
  }

  /**
   * Counts of devices by state. A device can have several states: `brokenTaken` are both broken and granted,
   * and `cordonedTaken` are cordoned and also granted (`cordonedHeld`) or broken (`cordonedBroken`). So all
   * devices are granted + (broken − brokenTaken) + (cordoned − cordonedTaken) + free.
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

/** The models of a pool's devices, unless its name has them. */
function modelsOf(pool) {
  if (pool.hardware.length) return [];
  const models = new Set(pool.nodes.flatMap(node => node.model.map(([model]) => model)));
  return [...models].map(shortModel).filter(model => !pool.name.includes(model));
}

/** The allocated part of a pool, in devices. */
function heldOf(pool) {
  let held = 0;
  for (const node of pool.nodes)
    for (let card = 0; card < node.count; card += 1) held += Math.min(1, granted(node, card));
  return held;
}

/** The allocated fraction of a device. */
export function granted(node, card) {
  let sum = 0;
  for (let at = node.start[card]; at < node.start[card + 1]; at += 1)
    sum += node.memory[at] || 1e-6;
  return sum;
}

/** The used fraction of a device; -1 if unknown. */
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

/** Whether a device is allocated but hardly used. */
export function isIdle(node, card) {
  const use = used(node, card);
  return use >= 0 && use < IDLE_BELOW * granted(node, card);
}

/** The state of a device, a key of `STATES`. */
export function stateOf(node, card) {
  if (isBroken(node, card)) return "broken";
  if (node.state[card] & CORDONED) return "cordoned";
  return node.start[card] === node.start[card + 1] ? "free" : "granted";
}

/** The state of a device in words; an unhealthy device has failed or is unreachable. */
export function stateWords(node, card) {
  const state = stateOf(node, card);
  if (state === "broken") return node.state[card] & FAILED ? "failed" : "unreachable";
  return state === "granted" ? "allocated" : state;
}

// ---- the filter: words as in `node:h100-115 ns:serving state:failed`, and one state to show ----
//
// A node caches its matches until it or the filter changes.

/** States to show, with the labels of their buttons. */
export const STATES = {
  all: "All",
  free: "Free",
  granted: "Allocated",
  idle: "Idle",
  broken: "Unhealthy",
  cordoned: "Cordoned",
};
export const KINDS = ["node", "pool", "model", "state", "ns", "pod", "gang"];
const POOLS_SAID = 6;
/** States by the words that users see. */
const STATE_OF = {
  free: "free",
  allocated: "granted",
  idle: "idle",
  unhealthy: "broken",
  failed: "failed",
  unreachable: "unreached",
  cordoned: "cordoned",
};
const SHOW_OF = { all: "all", ...STATE_OF };

const stateNamed = (word, known) =>
  Object.hasOwn(known, word) ? known[word] : Object.values(known).find(state => state === word);

/** The words of a filter, as pairs of kind and value. */
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

/** Errors in a filter, as sentences: unknown kinds, states and pools. */
export function odd(text, show = "all", pools = []) {
  const said = [];
  for (const [kind, wanted] of filterWords(text)) {
    if (kind === "state" && !stateNamed(wanted, STATE_OF))
      said.push(`Unknown state “${wanted}”. Use ${either(Object.keys(STATE_OF))}.`);
    if (kind === "pool" && pools.length && !pools.some(pool => isOfPool(pool.name, wanted)))
      said.push(`Unknown pool “${wanted}”. Use ${poolsSaid(pools)}.`);
    if (!kind && wanted.includes(":"))
      said.push(
        `Unknown filter “${wanted.split(":")[0]}:”. Use ${either(KINDS.map(each => `${each}:`))}.`,
      );
  }
  if (!stateNamed(show, SHOW_OF))
    said.push(`Unknown state “${show}”. Use ${either(Object.keys(SHOW_OF))}.`);
  return said;
}

const isOfPool = (name, wanted) => name.toLowerCase().includes(wanted);

/** The first pools by their names in the picture. */
function poolsSaid(pools) {
  const names = pools.slice(0, POOLS_SAID).map(poolWords);
  const left = pools.length - names.length;
  return either(left ? [...names, `one of ${num(left)} more`] : names);
}

export class Filter {
  constructor(text = "", show = "all") {
    this.set(text, show);
  }

  set(text, show) {
    this.show = stateNamed(show, SHOW_OF) ?? "all";
    this.words = filterWords(text);
    this.active = this.words.length > 0 || this.show !== "all";
    this.key = {}; // a new object for each filter, to invalidate cached matches
  }

  /** For each device of the node, 1 if it matches, else 0. */
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
      return inState(node, card, stateNamed(wanted, STATE_OF));
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
