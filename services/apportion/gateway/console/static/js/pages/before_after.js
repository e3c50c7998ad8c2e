// What a plan changes, drawn: the cards that it concerns before and after, the figures beside them,
// and the pods that would wait.
import { gauge, legend, sharesOf, stateOf, statesOf } from "../cards.js";
import { byName, many, num, shortId, shortModel } from "../format.js";
import { html } from "../html.js";
import { clauses } from "../parts.js";
import { withCode } from "../typography.js";
import { isTold, podName } from "../words.js";
import { compared } from "./diff.js";

export const ROWS = 12;

/** The cards before the change and after it, and the figures of both; `lose` names what is lost. */
export function beforeAfter(plan, nodes, lose) {
  if (!plan.before || !plan.after) return "";
  const lost = new Set(lose);
  const loses = ({ node, devices }) =>
    lost.has(node.node) || devices.some(device => isLost(device, lost));
  const ordered = nodes.toSorted((a, b) => loses(b) - loses(a) || byName(a.node.node, b.node.node));
  // A pod of the manifest that loses its node is among those that move as well.
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
  // so that the difference is that of what is shown
  const gib = totals => Math.round((totals.memory_mib - totals.memory_free_mib) / 1024);
  const rows = [
    ["Nodes", before.nodes, after.nodes, 1],
    ["Cards", before.devices, after.devices, 1],
    ...(before.devices_broken || after.devices_broken
      ? [["Cards broken", before.devices_broken, after.devices_broken, -1]]
      : []),
    ["Cards with a share", before.devices_used, after.devices_used, 0],
    ["Memory granted, GiB", gib(before), gib(after), 0],
    ["Pods with a place", before.placed, after.placed, 1],
    ["Pods waiting", before.waiting, after.waiting, -1],
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
                  ? [["own granted", "would come"]]
                  : []),
              ])}
            </div>`
        : ""
    }
    <table class="t cmp">
      <caption class="unseen">
        Before the change and after it
      </caption>
      <thead>
        <tr>
          <th scope="col"></th>
          <th scope="col" class="num">Before</th>
          <th scope="col" class="num">After</th>
          <th scope="col" class="num">Difference</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(compared)}
      </tbody>
    </table>
  </section>`;
}

/** Whether a card is named among what is lost: whole, or as pages cut its id. */
const isLost = ({ device }, lost) => lost.has(device) || lost.has(shortId(device));

/** Nodes card by card; in the picture of after, what is lost is broken, and what goes or comes has. */
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
  return `${many(cards.length, "card")}${broken ? `, ${num(broken)} broken` : ""}${
    come ? `, something new on ${num(come)}` : ""
  }`;
}

/**
 * Those that would wait, by what they wait for: the first of each line, and how many more. Where
 * none of them has its turn before a pod of the manifest, those who wait already are only counted:
 * the change is not about them.
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
    <h2>Who would wait${lines.length ? html` <small>in their order, by what for</small>` : ""}</h2>
    <ol class="mini">
      ${lines.slice(0, ROWS).map(waiterRow)}${
        lines.length > ROWS
          ? html`<li class="faint">and ${num(lines.length - ROWS)} more lines</li>`
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

/**
 * Those that are not told, as the verb counts them: of pods that the plan does not name nobody
 * knows that they wait now.
 */
function leftWords(left, { isAlone, isBehind, isNamed }) {
  if (isBehind && !isAlone) return `and ${many(left, "pod")} in lines behind them`;
  if (isNamed) return `${many(left, "pod")} would go on waiting, as now`;
  return isAlone ? `${many(left, "pod")} would wait` : `and ${many(left, "pod")} more would wait`;
}

const waiterRow = ({ first, count }) =>
  html`<li>
    <span
      >${podName(first.namespace, first.pod)}${count > 1 ? ` and ${num(count - 1)} more` : ""}${
        first.priority ? html` <span class="faint">of priority ${first.priority}</span>` : ""
      }${
        isTold(first.cause)
          ? html`: ${clauses(withCode(first.lead), first.clauses.map(withCode))}`
          : ""
      }</span
    >
  </li>`;
