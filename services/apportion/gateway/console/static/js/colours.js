// Colours of namespaces: eight that colour-blind users can tell apart (after Paul Tol); the last is shared.
//
// A namespace keeps its colour while the console is open. Namespaces that become known together get theirs
// in the order of their names, so that two screens agree.
import { byName } from "./format.js";

export const NAMESPACE_COLOURS = [
  "#4477AA",
  "#66CCEE",
  "#228833",
  "#CCBB44",
  "#EE6677",
  "#AA3377",
  "#8C6BB1",
  "#999999",
];
export const OTHER = NAMESPACE_COLOURS.length - 1;
const places = new Map();

/** Assign colours to namespaces that have none. */
export function meetNamespaces(names) {
  for (const name of [...new Set(names)].filter(each => !places.has(each)).sort(byName)) {
    places.set(name, Math.min(places.size, OTHER));
  }
}

/** The index of a namespace's colour. */
export function namespacePlace(name) {
  if (!places.has(name)) places.set(name, Math.min(places.size, OTHER));
  return places.get(name);
}

export const namespaceColour = name => NAMESPACE_COLOURS[namespacePlace(name)];

/** Namespaces and colours for a legend; those that share the last colour are one entry, `other`. */
export function namespaceLegend() {
  const own = [...places]
    .filter(([, place]) => place < OTHER)
    .map(([name, place]) => [name, NAMESPACE_COLOURS[place]]);
  const others = [...places.keys()].filter(name => places.get(name) === OTHER);
  return others.length
    ? [...own, [others.length === 1 ? others[0] : "other", NAMESPACE_COLOURS[OTHER]]]
    : own;
}
