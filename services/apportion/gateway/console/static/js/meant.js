// Which pod somebody means by a name, and which may be meant by one that no pod has: as `apportion why`
// finds them, at the moment that the pages show.
//
// Invariant: only pods that are or were there are offered, so that the link that is followed works.
import { all, get, orNone, path } from "./api.js";
import { byName, many, num } from "./format.js";
import { html } from "./html.js";
import { link, nodeLink, podLink } from "./words.js";
import { me } from "./login.js";
import { isLive, revisionWords } from "./moment.js";
import { onlySays } from "./parts.js";

const PODS_MOST = 10_000;
const SHOWN = 12;
const LIKE_CHARS = 6; // of a name that is mistyped behind them
const DEFAULT = "default";
const UNSEEN = [403, 404]; // nobody is told of what he may not see

/** The namespaces of the pod that a name alone means: one, or none, or the several that it may mean. */
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
 * Pods of that name in other namespaces, or else the live ones whose names are most like it; `past`
 * where that was asked.
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

/** What else has that name: a node, or a namespace with live pods. */
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

/** Where a pod of that name is or was; null where this gateway answers for no past. */
async function namespacesEver(name) {
  return (
    (await orNone(get(`history/pods/${path(name)}`)))?.items.map(each => each.namespace) ?? null
  );
}

/** Live pods, of several that have all of their name in common one. */
async function livePods() {
  const { items } = await all("pods", {}, PODS_MOST);
  return [...new Map(items.map(pod => [`${pod.namespace}/${pod.name}`, pod])).values()];
}

/** That no such pod is live; and where all of the `past` was asked, that none was before. */
function noPod(whose, past) {
  const before = !past || !me.all ? "" : isLive() ? ", and none ever was" : ", nor was one before";
  return `No pod ${whose} ${isLive() ? "is live" : "was live then"}${before}.`;
}

/** The page of a name that is that of several pods, one in each of these namespaces. */
export const severalPage = (name, namespaces) =>
  meantPage(`The name ${name} leads to ${many(namespaces.length, "pod")}.`, name, {
    pods: namespaces.map(namespace => ({ namespace, name })),
  });

/** The page of a name that no pod has. */
export const nonePage = (whose, name, meant) => meantPage(noPod(whose, meant.past), name, meant);

/** What a name may mean: pods, one that came `later`, a node, a namespace. Each is a way on. */
function meantPage(sentence, name, { pods, later = null, node = "", namespace = "" }) {
  const shown = pods.slice(0, SHOWN).map(pod => podLink(pod.namespace, pod.name));
  const said = [
    later &&
      html`It came later, at
      ${link(`pod/${later.namespace}/${later.name}`, revisionWords(later.revision), { at: String(later.revision) })}.`,
    shown.length &&
      html`Did you mean
      ${either(shown)}${pods.length > SHOWN ? ` (${num(pods.length - SHOWN)} more have that name)` : ""}?`,
    node && html`It is a node: ${nodeLink(node)}.`,
    namespace &&
      html`It is a namespace: ${link("pods", `the pods of ${namespace}`, { q: `${namespace}/` })}.`,
  ].filter(Boolean);
  return onlySays(
    sentence,
    said.length ? said.map(each => html`${each} `) : "No live pod has a name like it.",
    [
      link("pods", "All pods", {}, "btn"),
      link(
        "pods",
        `Pods with ${name.slice(0, LIKE_CHARS)} in their names`,
        { q: name.slice(0, LIKE_CHARS) },
        "btn",
      ),
    ],
  );
}

const either = links =>
  links.map((each, at) => html`${at ? (at === links.length - 1 ? " or " : ", ") : ""}${each}`);

// ---- names that are most like one that nothing has ----
//
// The measure is that of Ratcliff and Obershelp as Python's difflib has it, so that a page offers the
// names that the command line offers. Pure: a test holds it to the other one.

const OFFERED = 3;
const LIKE = 0.6;
const DIGITS = { o: "0", i: "1", l: "1" };

/** The few known names that are most like it, the nearest first; letters that look like digits are taken for these. */
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

/** How many letters of those that look the same are as they were written. */
const asWritten = (each, name) => [...each].filter((letter, at) => letter === name[at]).length;

const look = name => name.toLowerCase().replace(/[oil]/g, letter => DIGITS[letter]);

function likeness(one, other) {
  const length = one.length + other.length;
  // even if all of the shorter one is in the longer
  if (2 * Math.min(one.length, other.length) < LIKE * length) return 0;
  return (2 * matching(one, other)) / length;
}

/** How many letters lie in common pieces: the longest one, and so on at both its sides. */
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
