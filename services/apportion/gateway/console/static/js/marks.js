// The marks of the time bar. Marks that would overlap become one, which shows their count and opens a list.
//
// Invariant: neither marks nor their labels overlap, and no label is under the playhead. Pure.
import { clock, num } from "./format.js";
import { html, trusted } from "./html.js";

/** The width of a mark as a touch target. */
export const MARK_ROOM = 24;
/** Looks by importance: a group of marks has the first that occurs. */
export const LOOKS = ["broken", "cordon", "policy", "ok"];
/** Looks by kind of mark; an unknown kind looks like `policy`. */
export const LOOK_OF = {
  failure: "broken",
  recovery: "ok",
  cordon: "cordon",
  uncordon: "ok",
  policy: "policy",
  configuration: "policy",
};
const LETTER_ROOM = 6.2;
const DIGIT_ROOM = 7.3; // of counts, which are bold
const GAP = 4;
const DOT = 12;
const PILL_ENDS = 8; // padding around a count
const PILL_BORDER = 3; // as in frame.css
const COUNT_MOST = 999;

/**
 * Groups of marks by position, as `{x, marks, look, kinds, side}`; without a `side`, no label fits. `head` is
 * the position of the playhead.
 */
export function grouped(marks, x, width, head = width) {
  /** @type {any[]} */
  const groups = [];
  for (const mark of marks) {
    const last = groups.at(-1);
    if (last && x(mark) - last.x < MARK_ROOM) last.marks.push(mark);
    else groups.push({ x: x(mark), marks: [mark] });
  }
  merged(groups);
  for (const group of groups) {
    [[group.look]] = partsOf(group);
    group.kinds = [...Map.groupBy(group.marks, mark => mark.label)].map(([label, alike]) => [
      label,
      alike.length,
    ]);
  }
  labelled(groups, width, head);
  return groups;
}

/** The buttons of all groups. */
export const markButtons = (groups, width) =>
  groups.map((group, at) => markButton(group, at, width));

/** The list that a group opens: a button for each mark, which leads to it. */
export const markList = ({ marks }) =>
  html`<b>${spanWords(marks)}</b>
    <ol>
      ${marks.map(
        (mark, at) =>
          html`<li>
            <button data-revision="${mark.revision}" ${at ? "" : trusted("autofocus")}>
              <time>${clock(mark.ms)}</time><i class="k-${mark.look}"></i
              ><span>${mark.sentence}</span>
            </button>
          </li>`,
      )}
    </ol>`;

const countWords = count => (count > COUNT_MOST ? `${COUNT_MOST}+` : String(count));

/** The count of marks per look, so that failures and recoveries stay apart. */
const partsOf = ({ marks }) =>
  LOOKS.map(look => [look, marks.filter(mark => mark.look === look).length]).filter(
    ([, count]) => count,
  );

/** The drawn width of a count, in any font. */
const countRoom = count => PILL_ENDS + DIGIT_ROOM * countWords(count).length;

/** Half of the visible width of a group: a dot, or a count per look side by side. */
const shapeOf = group =>
  (group.marks.length < 2
    ? DOT
    : partsOf(group).reduce((sum, [, count]) => sum + countRoom(count), PILL_BORDER)) / 2;

/** Half of the reserved width of a group. */
const halfOf = group => Math.max(MARK_ROOM / 2, shapeOf(group));

/** Merge groups whose counts would overlap, until none do. */
function merged(groups) {
  for (let at = 1; at < groups.length; at += 1) {
    const [before, group] = groups.slice(at - 1);
    if (group.x - before.x >= halfOf(before) + halfOf(group)) continue;
    before.marks.push(...group.marks);
    groups.splice(at, 1);
    at = Math.max(0, at - 2);
  }
}

const groupLabel = ({ kinds }) => kinds.map(([label]) => label).join(", ");

const spanWords = marks =>
  `${num(marks.length)} marks, ${clock(marks[0].ms)} to ${clock(marks.at(-1).ms)}`;

/** The sentence of a single mark, or the counts by kind of a group. */
export const groupWords = ({ marks, kinds }) =>
  marks.length === 1
    ? `${clock(marks[0].ms)}  ${marks[0].sentence}`
    : `${spanWords(marks)}: ${kinds.map(([label, count]) => `${num(count)} × ${label}`).join(", ")}`;

/** Choose the groups that have room for a label; newer groups come first. */
function labelled(groups, width, head) {
  const isFree = (from, to) => head <= from || head >= to;
  let free = width;
  for (const [at, group] of [...groups.entries()].toReversed()) {
    const room = shapeOf(group) + GAP + LETTER_ROOM * groupLabel(group).length;
    const { x } = group;
    const before = groups[at - 1];
    const left = before ? before.x + halfOf(before) : 0;
    if (free - x > room && isFree(x, x + room)) group.side = "";
    else if (free === width && x - left > room && isFree(x - room, x)) group.side = "left";
    free = x - (group.side === "left" ? room : halfOf(group));
  }
}

function markButton(group, at, width) {
  const { marks, look, side } = group;
  const opens = marks.length > 1 ? trusted('popovertarget="t-list"') : "";
  const shown =
    marks.length > 1
      ? partsOf(group).map(
          ([each, count]) =>
            html`<em class="k-${each}" data-s="width:${countRoom(count)}px"
              >${countWords(count)}</em
            >`,
        )
      : "";
  return html`<button
    class="mk k-${look} ${shown ? "several" : ""}"
    data-at="${at}"
    data-revision="${marks[0].revision}"
    data-s="left:${(group.x / width) * 100}%"
    aria-label="${groupWords(group)}"
    ${opens}
  >
    <i>${shown}</i>${
      side === undefined
        ? ""
        : html`<b
            data-s="${side || "right"}:auto;${side ? "right" : "left"}:${MARK_ROOM / 2 + shapeOf(group) + GAP}px"
            >${groupLabel(group)}</b
          >`
    }
  </button>`;
}
