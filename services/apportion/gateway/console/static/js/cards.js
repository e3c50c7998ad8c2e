// How a device looks on every page, and the legend for it: one table of states. Their colours are in
// css/parts.css; css/fleet.css applies them.
//
// A device is a gauge. Its allocated memory fills it from the bottom: strong colour if the pod is running,
// else pale. An unhealthy device is crossed out, a cordoned one is hatched. The subject of a page, such as
// a pod's own share, has an outline in addition to the colour of its state.
import { html } from "./html.js";

/** Legend labels by CSS class. */
export const STATES = {
  used: "used",
  running: "running",
  granted: "starting",
  free: "free",
  broken: "unhealthy",
  cordoned: "cordoned",
};

/** A legend: `states` by name, or as `[name, words]` to override a label. */
export const legend = states =>
  states.map(each => {
    const [name, words] = Array.isArray(each) ? each : [each, STATES[each]];
    return html`<span><i class="sw ${name}"></i>${words}</span>`;
  });

/** The state class of a device from the read API, empty if nothing is wrong. */
export function stateOf(device, node) {
  if (!device.healthy || !device.present || !node.ready || node.gone) return "broken";
  return device.cordon || device.node_cordon ? "cordoned" : "";
}

/** The shares of a device, as `{part, state, own}`; `phases` maps the node's pods to their phases. */
export function sharesOf(device, phases, own = _holder => false) {
  return device.holders.map(holder => ({
    part: holder.memory_mib / Math.max(1, device.memory_mib),
    state: phases.get(`${holder.namespace}/${holder.pod}`) === "allocated" ? "running" : "granted",
    own: own(holder),
  }));
}

/** A device with its shares; `state` is the state class of the whole device. */
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

/** The states that occur, in the order of the table, for a legend. */
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
