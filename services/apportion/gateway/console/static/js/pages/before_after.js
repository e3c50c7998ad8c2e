// The effect of a plan: affected devices before and after, totals, and the pods that would be pending.
import { gauge, legend, sharesOf, stateOf, statesOf } from "../cards.js";
import { byName, many, num, shortId, shortModel } from "../format.js";
import { html } from "../html.js";
import { clauses } from "../parts.js";
import { withCode } from "../typography.js";
import { isTold, podName } from "../words.js";
import { compared } from "./diff.js";

export const ROWS = 12;

/** The devices and totals before and after the change; `lose` lists the lost nodes and devices. */
export function beforeAfter(plan, nodes, lose) {
  if (!plan.before || !plan.after) return "";
  const lost = new Set(lose);
  const loses = ({ node, devices }) =>
    lost.has(node.node) || devices.some(device => isLost(device, lost));
  const ordered = nodes.toSorted((a, b) => loses(b) - loses(a) || byName(a.node.node, b.node.node));
  // A pod of the manifest that loses its node is also in `moved`.
  const coming = [
    ...plan.pods.filter(each => each.outcome !== "unchanged" && !each.was),
    ...plan.moved,
    ...plan.helped,
  ]
    .flatMap(pod => pod.placed?.shares ?? [])
    .filter(({ share }) => share?.device);
  const cards = {
    before: cardsOf(ordered),
    after: cardsOf(ordered, { lost, coming, going: plan.evicted }),
  };
  const seen = Object.values(cards)
    .flat()
    .flatMap(node => node.cards);
  const { before, after } = plan;
  // rounded first, so that the difference matches the displayed numbers
  const gib = totals => Math.round((totals.memory_mib - totals.memory_free_mib) / 1024);
  const rows = [
    ["Nodes", before.nodes, after.nodes, 1],
    ["GPUs", before.devices, after.devices, 1],
    ...(before.devices_unhealthy || after.devices_unhealthy
      ? [["GPUs unhealthy", before.devices_unhealthy, after.devices_unhealthy, -1]]
      : []),
    ["GPUs allocated", before.devices_used, after.devices_used, 0],
    ["Memory allocated (GiB)", gib(before), gib(after), 0],
    ["Pods placed", before.placed, after.placed, 1],
    ["Pods pending", before.waiting, after.waiting, -1],
  ];
  return html`<section class="card">
    ${
      nodes.length
        ? html`<div class="ba">
              <div>
                <h2>Before</h2>
                ${miniFleet(cards.before)}
              </div>
              <div>
                <h2>After</h2>
                ${miniFleet(cards.after)}
              </div>
            </div>
            <div class="legend">
              ${legend([
                ...statesOf(seen),
                ...(seen.some(card => card.shares.some(share => share.own))
                  ? [["own granted", "would be placed"]]
                  : []),
              ])}
            </div>`
        : ""
    }
    <table class="t cmp">
      <caption class="unseen">
        Totals before and after the change
      </caption>
      <thead>
        <tr>
          <th scope="col"></th>
          <th scope="col" class="num">Before</th>
          <th scope="col" class="num">After</th>
          <th scope="col" class="num">Change</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(compared)}
      </tbody>
    </table>
  </section>`;
}

/** Whether a device is lost, by its full or its short id. */
const isLost = ({ device }, lost) => lost.has(device) || lost.has(shortId(device));

/** The devices of nodes as gauges. For the picture after the change, `lost` is drawn as unhealthy. */
function cardsOf(nodes, { lost = new Set(), coming = [], going = [] } = {}) {
  const gone = new Set(going.map(pod => `${pod.namespace}/${pod.pod}`));
  return nodes.map(({ node, devices, phases }) => ({
    name: node.node,
    model: devices[0] ? shortModel(devices[0].model) : "",
    cards: devices.map(device => {
      const holders = device.holders.filter(
        holder => !gone.has(`${holder.namespace}/${holder.pod}`),
      );
      const mib = coming.reduce(
        (sum, { share }) => sum + (share.device === device.device ? share.memory_mib : 0),
        0,
      );
      const come = mib
        ? [{ part: mib / Math.max(1, device.memory_mib), state: "granted", own: true }]
        : [];
      return {
        state: lost.has(node.node) || isLost(device, lost) ? "broken" : stateOf(device, node),
        shares: [...sharesOf({ ...device, holders }, phases), ...come],
      };
    }),
  }));
}

function miniFleet(nodes) {
  return html`<div class="mini-fleet">
    ${nodes.map(
      ({ name, model, cards }) =>
        html`<div class="mn">
          <span class="m" title="${name} ${model}">${name}</span
          ><span class="mcards" role="img" aria-label="${name}: ${cardWords(cards)}"
            >${cards.map(({ state, shares }) => gauge(state, shares))}</span
          >
        </div>`,
    )}
  </div>`;
}

function cardWords(cards) {
  const broken = cards.filter(card => card.state === "broken").length;
  const come = cards.filter(
    card => card.state !== "broken" && card.shares.some(share => share.own),
  ).length;
  return `${many(cards.length, "GPU")}${broken ? `, ${num(broken)} unhealthy` : ""}${
    come ? `, new pods on ${num(come)}` : ""
  }`;
}

/**
 * The pods that would be pending, grouped by request: the first of each group and a count. Pods that are
 * pending already are only counted, unless some are ahead of a pod of the manifest.
 */
export function waiters({ waiting: pods, after, ...plan }) {
  const isBehind = plan.pods.some(pod => pod.ahead);
  const told = isBehind ? pods : pods.filter(pod => pod.submitted_revision > plan.revision);
  const lines = [...Map.groupBy(told, pod => pod.line).values()].map(line => ({
    first: line[0],
    count: (isBehind && line[0].alike) || line.length,
  }));
  const above = new Set(
    [...plan.pods, ...plan.moved]
      .filter(pod => !pod.node)
      .map(pod => `${pod.namespace}/${pod.name}`),
  );
  const total = (after?.waiting ?? 0) - above.size;
  const left = total - lines.reduce((sum, { count }) => sum + count, 0);
  if (!lines.length && left <= 0) return "";
  return html`<section class="card">
    <h2>Pending${lines.length ? html` <small>in queue order, by request</small>` : ""}</h2>
    <ol class="mini">
      ${lines.slice(0, ROWS).map(waiterRow)}${
        lines.length > ROWS
          ? html`<li class="faint">and ${many(lines.length - ROWS, "more request")}</li>`
          : ""
      }${
        left > 0
          ? html`<li class="faint">
              ${leftWords(left, { isAlone: !lines.length, isBehind, isNamed: total <= pods.length })}
            </li>`
          : ""
      }
    </ol>
  </section>`;
}

/** The count of pods that are not listed. Only pods that the plan names are known to be pending now. */
function leftWords(left, { isAlone, isBehind, isNamed }) {
  if (isBehind && !isAlone) return `and ${many(left, "pod")} behind them`;
  if (isNamed) return `${many(left, "pod")} would stay pending`;
  return isAlone ? `${many(left, "pod")} would be pending` : `and ${many(left, "more pod")}`;
}

const waiterRow = ({ first, count }) =>
  html`<li>
    <span
      >${podName(first.namespace, first.pod)}${count > 1 ? ` and ${num(count - 1)} more` : ""}${
        first.priority ? html` <span class="faint">priority ${first.priority}</span>` : ""
      }${
        isTold(first.cause)
          ? html`: ${clauses(withCode(first.lead), first.clauses.map(withCode))}`
          : ""
      }</span
    >
  </li>`;
