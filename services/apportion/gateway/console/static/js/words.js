// Words that pages share for what a pod wants and holds. What happened is always said by the gateway.
import { instant, many, num, when } from "./format.js";
import { html } from "./html.js";
import { nodeLink, podLink } from "./links.js";
import { shownTime } from "./moment.js";
import { PHASES } from "./vocabulary.js";

const OTHERS = "another namespace"; // as the gateway calls all that the reader may not see
const NOT_TOLD = "-";

/** What a pod asks for, as in `2 × 3,000 MiB, 50 % cores` or `8 whole cards`. */
export function wants(asks) {
  return (
    asks
      .map(ask => {
        const count = ask.count ?? 1;
        const whole =
          ask.cores === 100 &&
          ask.memory_mib === undefined &&
          [undefined, 100].includes(ask.memory_percent);
        if (whole) return `${count} whole ${count === 1 ? "card" : "cards"}`;
        const memory =
          ask.profile ||
          (ask.memory_mib !== undefined
            ? `${num(ask.memory_mib)} MiB`
            : ask.memory_percent !== undefined
              ? `${ask.memory_percent} % memory`
              : "all memory");
        return `${count} × ${memory}${ask.cores ? `, ${ask.cores} % cores` : ""}`;
      })
      .join(" + ") || "no card"
  );
}

/** A phase as people say it: a pod that has no place yet waits, whether somebody has looked or not. */
export const phaseWord = phase => PHASES[phase] ?? phase;

/** What a pod holds, as in `2 cards, 3,000 MiB, 50 % cores each` or `1 card, 10,000 MiB, 50 % cores + 2,000 MiB`. */
export function holds(shares) {
  if (!shares.length) return "";
  const devices = new Set(shares.map(share => share.device)).size;
  const pieces = Map.groupBy(shares, piece);
  const each = pieces.size === 1 && shares.length === devices;
  const said = [...pieces]
    .map(([words, { length }]) => (length === 1 || each ? words : `${length} × ${words}`))
    .join(" + ");
  return `${many(devices, "card")}, ${said}${each && devices > 1 ? " each" : ""}`;
}

/** As in `30 %`; of an NPU, by whose id one is known, the cores are counted. */
export const coresHeld = ({ device, cores }) =>
  device.startsWith("NPU-") ? num(cores) : `${cores} %`;

/** One share: cores of a template are not percent, and its name says both. */
function piece(share) {
  const { memory_mib: mib, cores, template } = share;
  const of = template || (cores ? `${coresHeld(share)} cores` : "");
  return [`${num(mib)} MiB`, of].filter(Boolean).join(", ");
}

/** The gateway's `8 x nvidia whole, of H100` as a heading: `8 × nvidia, whole, of H100`. */
export const lineWords = said => said.replaceAll(" x ", " × ").replace(/ whole\b/g, ", whole");

/** Whether a name is told to this reader: of pods of others there is none. */
export const isTold = name => Boolean(name) && name !== NOT_TOLD;

/** A pod as a link to its page; one of a namespace that the reader may not see has neither name nor page. */
export const podName = (namespace, name) =>
  namespace === OTHERS || !isTold(name)
    ? html`<span class="faint">a pod of ${OTHERS}</span>`
    : podLink(namespace, name);

/** A node as a link, where it is told. */
export const nodeName = node =>
  isTold(node) ? nodeLink(node) : html`<span class="faint">–</span>`;

/** A sentence whose times are as pages have them: the ledger's own, 2026-11-26T12:55:32Z, by the reader's clock. */
export const ownTimes = text =>
  text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, time =>
    when(instant(time), shownTime()),
  );

/** Seconds since a time, at the moment that is shown; null where nobody said when. */
export function since(time, now) {
  const ms = instant(time);
  return ms === null ? null : Math.max(0, (now - ms) / 1000);
}
