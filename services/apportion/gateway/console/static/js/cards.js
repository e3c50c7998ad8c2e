// How a card looks on every page, and the legend that says so: one table of states, whose colours
// stand in css/parts.css (css/fleet.css lays them on).
//
// A card is a gauge: from its foot upwards stands what is granted of its memory, pale, and strong
// where that runs. A broken one is cut through, a cordoned one hatched. What a page is about (a pod's
// own share, one that would come) has an outline: the colour below it is that of its state still.
import { html } from "./html.js";

/** States by the name of their class. */
export const STATES = {
  used: "used",
  running: "running",
  granted: "granted",
  free: "free",
  broken: "broken",
  cordoned: "cordoned",
};

/** What stands for what: `states` by name, or as `[name, words]` where a page has words of its own. */
export const legend = states =>
  states.map(each => {
    const [name, words] = Array.isArray(each) ? each : [each, STATES[each]];
    return html`<span><i class="sw ${name}"></i>${words}</span>`;
  });

/** The state of a card, as the read API tells of it and of its node. */
export function stateOf(device, node) {
  if (!device.healthy || !device.present || !node.ready || node.gone) return "broken";
  return device.cordon || device.node_cordon ? "cordoned" : "";
}

/** What is held of a card, as `{part, state, own}`; `phases` are those of the node's pods by name. */
export function sharesOf(device, phases, own = _holder => false) {
  return device.holders.map(holder => ({
    part: holder.memory_mib / Math.max(1, device.memory_mib),
    state: phases.get(`${holder.namespace}/${holder.pod}`) === "allocated" ? "running" : "granted",
    own: own(holder),
  }));
}

/** A card: `state` is that of the whole, empty where it is as it must be. */
export const gauge = (state, shares) =>
  html`<i class="gauge ${state}"
    >${shares.map(
      share =>
        html`<i
          class="${share.state} ${share.own ? "own" : ""}"
          data-s="height:${100 * share.part}%"
        ></i>`,
    )}</i
  >`;

/** The states that are there, for a legend, in the order of the table. */
export function statesOf(cards) {
  const isFull = shares => shares.reduce((sum, share) => sum + share.part, 0) > 0.99;
  const there = new Set(
    cards.flatMap(({ state, shares }) => [
      state || (isFull(shares) ? "" : "free"),
      ...shares.map(share => share.state),
    ]),
  );
  return Object.keys(STATES).filter(name => there.has(name));
}
