// Which known names are most like one that nothing has.
//
// The measure is that of Ratcliff and Obershelp as Python's difflib has it, so that a page offers the
// names that the command line offers. Pure: a test holds it to the other one.
import { byName } from "./format.js";

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
