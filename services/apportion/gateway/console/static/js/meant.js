// Resolves a pod's name to a pod, and offers similar names if there is none, as `apportion why` does, at the
// moment that the pages show.
//
// Invariant: only pods that exist or existed are offered, so that every link works.
import { all, get, orNone, path } from "./api.js";
import { byName, many, num } from "./format.js";
import { html } from "./html.js";
import { link, nodeLink, podLink } from "./words.js";
import { me } from "./login.js";
import { isLive, revisionWords } from "./moment.js";
import { onlySays } from "./parts.js";

const PODS_MOST = 10_000;
const SHOWN = 12;
const LIKE_CHARS = 6; // the prefix of a mistyped name to search for
const DEFAULT = "default";
const UNSEEN = [403, 404]; // not found, or hidden from this user

/** The namespaces that a pod's name alone can refer to: none, one or several. */
export async function namespacesOf(name) {
  const ever = (await namespacesEver(name)) ?? [];
  if (ever.includes(DEFAULT)) return [DEFAULT];
  const live = new Set(
    (await livePods()).filter(pod => pod.name === name).map(pod => pod.namespace),
  );
  if (live.has(DEFAULT)) return [DEFAULT];
  return live.size ? [...live].sort() : ever;
}

/**
 * Pods with this name in other namespaces, or else live pods with the most similar names. `past` is whether
 * the history was searched.
 */
export async function mayBeMeant(name) {
  const [ever, live] = await Promise.all([namespacesEver(name), livePods()]);
  const past = ever !== null;
  if (ever?.length) return { past, pods: ever.map(namespace => ({ namespace, name })) };
  const known = Map.groupBy(live, pod => pod.name);
  return {
    past,
    pods: known.get(name) ?? near(name, known.keys()).flatMap(each => known.get(each)),
  };
}

/** A node or a namespace with this name. */
export async function otherKinds(name) {
  const [node, spaces] = await Promise.all([
    orNone(get(`nodes/${path(name)}`), UNSEEN),
    orNone(get("namespaces"), UNSEEN),
  ]);
  return {
    node: node ? name : "",
    namespace: spaces?.items.some(each => each.namespace === name) ? name : "",
  };
}

/** The namespaces that have or had a pod with this name; null if the gateway has no history. */
async function namespacesEver(name) {
  return (
    (await orNone(get(`history/pods/${path(name)}`)))?.items.map(each => each.namespace) ?? null
  );
}

/** Live pods, without duplicate names. */
async function livePods() {
  const { items } = await all("pods", {}, PODS_MOST);
  return [...new Map(items.map(pod => [`${pod.namespace}/${pod.name}`, pod])).values()];
}

/** The headline for a missing pod. It covers the past only if all of the history was searched. */
function noPod(whose, past) {
  const isSearched = past && me.all;
  if (isLive()) return isSearched ? `No pod ${whose}, now or before` : `No live pod ${whose}`;
  return `No pod ${whose} at this time${isSearched ? " or before" : ""}`;
}

/** The page for a name that pods in several namespaces have. */
export const severalPage = (name, namespaces) =>
  meantPage(`${many(namespaces.length, "pod")} named ${name}`, name, {
    pods: namespaces.map(namespace => ({ namespace, name })),
  });

/** The page for a name that no pod has. */
export const nonePage = (whose, name, meant) => meantPage(noPod(whose, meant.past), name, meant);

/** Links to what a name may mean: pods, a pod created `later`, a node or a namespace. */
function meantPage(sentence, name, { pods, later = null, node = "", namespace = "" }) {
  const shown = pods.slice(0, SHOWN).map(pod => podLink(pod.namespace, pod.name));
  const said = [
    later &&
      html`It was submitted later, at
      ${link(`pod/${later.namespace}/${later.name}`, revisionWords(later.revision), { at: String(later.revision) })}.`,
    shown.length &&
      html`Did you mean
      ${either(shown)}${pods.length > SHOWN ? ` (${num(pods.length - SHOWN)} more)` : ""}?`,
    node && html`There is a node with this name: ${nodeLink(node)}.`,
    namespace &&
      html`There is a namespace with this name:
      ${link("pods", `pods in ${namespace}`, { q: `${namespace}/` })}.`,
  ].filter(Boolean);
  return onlySays(
    sentence,
    said.length ? said.map(each => html`${each} `) : "No live pod has a similar name.",
    [
      link("pods", "All pods", {}, "btn"),
      link(
        "pods",
        `Search “${name.slice(0, LIKE_CHARS)}”`,
        { q: name.slice(0, LIKE_CHARS) },
        "btn",
      ),
    ],
  );
}

const either = links =>
  links.map((each, at) => html`${at ? (at === links.length - 1 ? " or " : ", ") : ""}${each}`);

// ---- similar names ----
//
// The Ratcliff-Obershelp similarity, as in Python's difflib, so that pages and the CLI offer the same names.
// Pure; a test compares both.

const OFFERED = 3;
const LIKE = 0.6;
const DIGITS = { o: "0", i: "1", l: "1" };

/** The most similar known names, the nearest first. Letters that look like digits count as these digits. */
export function near(name, known) {
  const byLook = Map.groupBy([...new Set(known)].sort(byName), look);
  return [...byLook]
    .map(([seen, alike]) => [likeness(seen, look(name)), seen, alike])
    .filter(([like]) => like >= LIKE)
    .sort(([one, first], [other, second]) => other - one || (first < second ? 1 : -1))
    .slice(0, OFFERED)
    .flatMap(([, , alike]) =>
      alike.toSorted(
        (one, other) => asWritten(other, name) - asWritten(one, name) || (one < other ? -1 : 1),
      ),
    )
    .slice(0, OFFERED);
}

/** The count of characters that are identical, and not only similar. */
const asWritten = (each, name) => [...each].filter((letter, at) => letter === name[at]).length;

const look = name => name.toLowerCase().replace(/[oil]/g, letter => DIGITS[letter]);

function likeness(one, other) {
  const length = one.length + other.length;
  // too different in length, even if one contains the other
  if (2 * Math.min(one.length, other.length) < LIKE * length) return 0;
  return (2 * matching(one, other)) / length;
}

/** The count of characters in common substrings: the longest one, then recursively on both sides of it. */
function matching(one, other) {
  const { at, beside, size } = longest(one, other);
  if (!size) return 0;
  return (
    size +
    matching(one.slice(0, at), other.slice(0, beside)) +
    matching(one.slice(at + size), other.slice(beside + size))
  );
}

function longest(one, other) {
  let best = { at: 0, beside: 0, size: 0 };
  let before = [];
  for (let i = 0; i < one.length; i += 1) {
    const sizes = [];
    for (let j = 0; j < other.length; j += 1) {
      if (one[i] !== other[j]) continue;
      sizes[j] = (before[j - 1] ?? 0) + 1;
      if (sizes[j] > best.size)
        best = { at: i - sizes[j] + 1, beside: j - sizes[j] + 1, size: sizes[j] };
    }
    before = sizes;
  }
  return best;
}
