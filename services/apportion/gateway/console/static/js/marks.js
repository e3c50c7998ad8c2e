// The marks of the time bar. Those that would overlap are one: it says how many, and opens their list.
//
// Invariant: no two marks lie on each other, and no words beside one lie on another. Pure: text only.
import { clock, num } from "./format.js";
import { html, trusted } from "./html.js";

/** How wide a mark is, to a finger as well. */
export const MARK_ROOM = 24;
const LOOKS = ["broken", "cordon", "policy", "ok"]; // of several marks the first of these that is there
const LETTER_ROOM = 6.2;
const COUNT_MOST = 999;

/** Marks by place, as `{x, marks, look, kinds, side}`; without a `side` there is no room for words. */
export function grouped(marks, x, width) {
  const groups = [];
  for (const mark of marks) {
    const last = groups.at(-1);
    if (last && x(mark) - last.x < MARK_ROOM) last.marks.push(mark);
    else groups.push({ x: x(mark), marks: [mark] });
  }
  for (const group of groups) {
    group.look = LOOKS.find(look => group.marks.some(mark => mark.look === look));
    group.kinds = [...Map.groupBy(group.marks, mark => mark.label)].map(([label, alike]) => [label, alike.length]);
  }
  labelled(groups, width);
  return groups;
}

/** Their buttons, in their order. */
export const markButtons = (groups, width) => groups.map((group, at) => markButton(group, at, width));

/** What opens where several are one: each with its time, and leading to it. */
export const markList = ({ marks }) => html`<b>${spanWords(marks)}</b><ol>${marks.map((mark, at) => html`<li><button data-revision="${mark.revision}" ${at ? "" : trusted("autofocus")}><time>${clock(mark.ms)}</time><i class="k-${mark.look}"></i><span>${mark.sentence}</span></button></li>`)}</ol>`;

const groupLabel = ({ kinds }) => kinds.map(([label]) => label).join(", ");

const spanWords = marks => `${num(marks.length)} marks, ${clock(marks[0].ms)} to ${clock(marks.at(-1).ms)}`;

/** What a mark says, or how many of which kinds several are. */
export const groupWords = ({ marks, kinds }) =>
  (marks.length === 1 ? `${clock(marks[0].ms)}  ${marks[0].sentence}` : `${spanWords(marks)}: ${kinds.map(([label, count]) => `${num(count)} × ${label}`).join(", ")}`);

/** Which groups have room for words beside them; the newest has the first right to it. */
function labelled(groups, width) {
  let free = width;
  for (const [at, group] of [...groups.entries()].toReversed()) {
    const room = MARK_ROOM + LETTER_ROOM * groupLabel(group).length;
    if (free - group.x > room) group.side = "";
    else if (free === width && group.x - (groups[at - 1]?.x ?? 0) > room + MARK_ROOM) group.side = "left";
    free = group.x - MARK_ROOM / 2;
  }
}

function markButton(group, at, width) {
  const { marks, look, side } = group;
  const opens = marks.length > 1 ? trusted('popovertarget="t-list"') : "";
  const shown = marks.length > 1 ? html`<em>${marks.length > COUNT_MOST ? `${COUNT_MOST}+` : marks.length}</em>` : "";
  return html`<button class="mk k-${look} ${shown ? "several" : ""}" data-at="${at}" data-revision="${marks[0].revision}" data-s="left:${group.x / width * 100}%" aria-label="${groupWords(group)}" ${opens}><i>${shown}</i>${side === undefined ? "" : html`<b class="${side}">${groupLabel(group)}</b>`}</button>`;
}
