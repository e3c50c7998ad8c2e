// What the list of pods shows: filters, order, and the tree of workloads, gangs, pods and shares. Pure.
//
// The order of the given pods is kept where none is chosen. Invariant: each given pod that matches is in the
// tree exactly once.
import { byName, instant } from "../format.js";
import { phaseWord } from "../words.js";

/** The phases by which pods can be filtered, in their order; empty for all. */
export const PHASES = ["", "pending", "placed", "bound", "allocated", "rejected"];

/** The number of devices of a pod: allocated, or else requested. */
export const devicesOf = ({ shares, asks }) =>
  shares.length
    ? new Set(shares.map(share => share.device)).size
    : asks.reduce((sum, { count = 1 }) => sum + count, 0);

/** Since when a pod has its node, or else has been submitted, in milliseconds. */
export const beganOf = pod => instant(pod.placed_time || pod.submitted_time);

const COMPARE = {
  name: (a, b) => byName(`${a.namespace}/${a.name}`, `${b.namespace}/${b.name}`),
  phase: (a, b) => PHASES.indexOf(phaseWord(a.phase)) - PHASES.indexOf(phaseWord(b.phase)),
  gpus: (a, b) => devicesOf(a) - devicesOf(b),
  node: (a, b) => Number(!a.node) - Number(!b.node) || byName(a.node, b.node),
  age: (a, b) => (beganOf(b) ?? 0) - (beganOf(a) ?? 0),
};

/** A sort order from an address, such as `node` or, descending, `-node`; empty if unknown. */
export const sortOf = text => (Object.hasOwn(COMPARE, text.replace(/^-/, "")) ? text : "");

/** The sort order after a press on a column: ascending, descending, none. */
export const nextSort = (sort, column) =>
  sort === column ? `-${column}` : sort === `-${column}` ? "" : column;

/** The pods in a sort order; without one, as given. */
export function ordered(pods, sort) {
  if (!sort) return pods;
  const compare = COMPARE[sort.replace(/^-/, "")];
  return pods.toSorted(sort.startsWith("-") ? (a, b) => compare(b, a) : compare);
}

/** The pods that match all filters. A node is matched by its name, or by a part of it if none has that name. */
export function matching(pods, { text, phase, namespace, node }, wordsOf) {
  const wanted = text.trim().toLowerCase();
  const near = node.trim();
  const isNode = pods.some(pod => pod.node === near)
    ? pod => pod.node === near
    : pod => pod.node.includes(near);
  return pods.filter(
    pod =>
      (!phase || phaseWord(pod.phase) === phase) &&
      (!namespace || pod.namespace === namespace) &&
      (!near || isNode(pod)) &&
      (!wanted || wordsOf(pod).toLowerCase().includes(wanted)),
  );
}

/** The workload of a pod, such as `research/Job/sweep`; its gang if it has no owner; empty if it has neither. */
const workloadOf = ({ namespace, owner, group }) => (owner ? `${namespace}/${owner}` : group);

/**
 * The rows of the tree, as `{kind, key, level, pods, …}`: workloads first, then pods without one. Only rows
 * below an open one are listed.
 */
export const treeRows = (pods, open) => [
  ...[...Map.groupBy(pods.filter(workloadOf), workloadOf)].flatMap(([key, own]) =>
    workloadRows(key, own, open),
  ),
  ...pods.filter(pod => !workloadOf(pod)).flatMap(pod => podRows(pod, 0, open)),
];

function workloadRows(key, pods, open) {
  const [{ namespace, owner, group }] = pods;
  const kind = owner ? "workload" : "gang";
  const row = { kind, key, level: 0, pods, namespace, name: owner || group };
  if (!open.has(key)) return [row];
  return [
    row,
    ...[...Map.groupBy(pods, pod => (owner ? pod.group : ""))].flatMap(([gang, own]) =>
      gang
        ? gangRows(`${key}:${gang}`, gang, own, open)
        : own.flatMap(pod => podRows(pod, 1, open)),
    ),
  ];
}

function gangRows(key, gang, pods, open) {
  const row = { kind: "gang", key, level: 1, pods, namespace: pods[0].namespace, name: gang };
  return open.has(key) ? [row, ...pods.flatMap(pod => podRows(pod, 2, open))] : [row];
}

function podRows(pod, level, open) {
  const row = { kind: "pod", key: pod.uid, level, pods: [pod] };
  const shares = pod.shares.map((share, at) => ({
    kind: "share",
    key: `${pod.uid}:${at}`,
    level: level + 1,
    pods: [pod],
    share,
  }));
  return open.has(pod.uid) ? [row, ...shares] : [row];
}

/** How many pods of a row are in each phase, in the order of the phases. */
export function phaseCounts(pods) {
  const counts = Map.groupBy(pods, pod => phaseWord(pod.phase));
  return PHASES.filter(phase => counts.has(phase)).map(phase => [phase, counts.get(phase).length]);
}
