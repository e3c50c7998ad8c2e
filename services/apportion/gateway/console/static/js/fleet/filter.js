// Which cards are meant: words as in `node:h100-115 ns:serving state:broken`, and one state to show.
// Pure. A node keeps the answer for its cards until it or the filter changes.
import { num, poolWords } from "../format.js";
import { listed } from "../parts.js";
import { BROKEN, CORDONED, FAILED, isFree, isIdle } from "./model.js";

export const STATES = ["all", "free", "granted", "idle", "broken", "cordoned"];
export const KINDS = ["node", "pool", "model", "state", "ns", "pod", "gang"];
const POOLS_SAID = 6;
const OTHER_STATES = ["failed", "unreached"];

/** The words of a filter, as pairs of what they are about and what is wanted. */
export function words(text) {
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
  for (const [kind, wanted] of words(text)) {
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
    this.words = words(text);
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

function held(node, card, test) {
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
      return held(node, card, pod => pod.namespace === wanted);
    case "gang":
      return held(node, card, pod => pod.gang.includes(wanted));
    case "pod":
      return held(node, card, pod => `${pod.namespace}/${pod.name}`.includes(wanted));
    default:
      return (
        name.includes(wanted) ||
        node.pool.toLowerCase().includes(wanted) ||
        held(node, card, pod => `${pod.namespace}/${pod.name}`.includes(wanted))
      );
  }
}
