// Why a pod waits, in the gateway's own words: the part of its sentence that a headline has room for.
//
// A limit or a gang is what keeps a pod out wherever it would stand, so it is said alone: what nodes lack
// beside it stands in the page's lists, as all causes do. Pure: a test runs this module by itself.
const LEAD = /^.*?(?: is waiting since revision [\d,]+| would (?:go on )?wait(?:ing)?[^:]*| can never have a place): /s;
const NEXT_SENTENCE = /\. (?=[A-Z])/;
const OF_NODES = /(?:^|; )(?:for the first that does not, |with these, )?(?:none of [\d,]+ nodes? fits|there is no node yet)/;
const CAUSES = /^(.*none of [\d,]+ nodes? fits: )(.*)$/s;
const NEAREST = /^(?:it needs .*, )?nearest is /;
const COUNTED = /^([\d,]+) more causes$/;

const told = sentence => sentence.replace(LEAD, "").split(NEXT_SENTENCE)[0];

/** The limit or the gang that keeps a pod out, whatever nodes have; empty where it is nodes that do. */
export function limitOf(sentence) {
  const said = told(sentence);
  const nodes = said.search(OF_NODES);
  return nodes < 0 && CAUSES.test(said) ? "" : said.slice(0, nodes < 0 ? said.length : nodes);
}

/** That limit; else the first cause, how many there are besides, and the nearest node. */
export const reasonOf = sentence => limitOf(sentence) || shortened(told(sentence));

function shortened(said) {
  const [, lead, rest] = CAUSES.exec(said) ?? [];
  if (!lead) return said;
  const parts = rest.split("; ");
  const nearest = parts.filter(part => NEAREST.test(part));
  const [first, ...others] = parts.filter(part => !NEAREST.test(part));
  const left = others.reduce((sum, part) => sum + Number(COUNTED.exec(part)?.[1].replaceAll(",", "") ?? 1), 0);
  return lead + [first, ...(left > 1 ? [`${left} more causes`] : others), ...nearest].join("; ");
}
