// Colours of namespaces: eight that stay apart for everybody (after Paul Tol), the last for others.
//
// A namespace keeps its colour as long as the page is open. Of those known together the first by
// name comes first, so that two screens agree.
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

/** Give those a colour that have none yet. */
export function meetNamespaces(names) {
  for (const name of [...new Set(names)].filter(each => !places.has(each)).sort(byName)) {
    places.set(name, Math.min(places.size, OTHER));
  }
}

/** Which of the colours a namespace has. */
export function namespacePlace(name) {
  if (!places.has(name)) places.set(name, Math.min(places.size, OTHER));
  return places.get(name);
}

export const namespaceColour = name => NAMESPACE_COLOURS[namespacePlace(name)];

/** Names with their colours, for a legend; those that share the last one as `other`. */
export function namespaceLegend() {
  const own = [...places]
    .filter(([, place]) => place < OTHER)
    .map(([name, place]) => [name, NAMESPACE_COLOURS[place]]);
  const others = [...places.keys()].filter(name => places.get(name) === OTHER);
  return others.length
    ? [...own, [others.length === 1 ? others[0] : "other", NAMESPACE_COLOURS[OTHER]]]
    : own;
}
