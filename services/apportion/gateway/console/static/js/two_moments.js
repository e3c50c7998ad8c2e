// Which moment an address is about: `at`, or where two are compared (`diff=FROM,TO`) the later one.
//
// Compare has no third moment: the bar stands at the later one, and whatever moves the bar moves that.
// Invariant: an address with `diff` has no `at`, and its moments are the same however often it is read.
import { askedMoment, withPlus } from "./asked_moment.js";
import { route, setParameters } from "./route.js";

const NOW = "now";

/** Whether an address compares two moments. */
export const isCompared = ({ name, parameters }) => name === "events" && parameters.has("diff");

/** Both moments of an address; without the second one the comparison is with now. */
export function bothMoments(parameters) {
  const [from, to] = parameters
    .get("diff")
    .split(",")
    .map(each => withPlus(each.trim()));
  return [from, to || NOW].map(each => askedMoment(each, Date.now()));
}

/** The moment of the address, empty for now; one that is so long ago is fixed: it is another one a second later. */
export function addressedMoment() {
  const asked = route();
  if (!isCompared(asked)) return withPlus(asked.parameters.get("at") ?? "");
  const [from, to] = bothMoments(asked.parameters);
  setParameters({ diff: `${from.asked},${to.asked}`, at: "" });
  return to.asked === NOW ? "" : to.asked;
}

/** Another moment of the page that is open, in its address. */
export function setAddressedMoment(at) {
  const asked = route();
  if (!isCompared(asked)) {
    setParameters({ at });
    return;
  }
  setParameters({ diff: `${bothMoments(asked.parameters)[0].asked},${at || NOW}` });
}
