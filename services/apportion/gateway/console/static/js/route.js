// Addresses: #/page/argument?parameter=value. Every link keeps the moment that is shown.
//
// A pod's page is #/pod/NAMESPACE/NAME: all links have it so. Whoever types #/pods/NAMESPACE/NAME, as
// the list is called, means it too; and other addresses that can mean but one page lead there.
//
// Which moment an address is about: `at`, or where two are compared (`diff=FROM,TO`) the later one.
// Compare has no third moment: the bar stands at the later one, and whatever moves the bar moves that.
// Invariant: an address with `diff` has no `at`, and its moments are the same however often it is read.
import { askedMoment, moment, withPlus } from "./moment.js";

const SPELT = new Map([
  ["what-if", "whatif"],
  ["event", "events"],
  ["report", "reports"],
  ["nodes", "fleet"],
  ["node", "fleet"],
]);

/**
 * An address that means a page by another name, as all links have that page: in its place. A node
 * is on the fleet page.
 */
export function setSpelt() {
  const {
    name,
    args: [node],
    parameters,
  } = route();
  if (!SPELT.has(name)) return;
  if (SPELT.get(name) === "fleet" && node) parameters.set("q", `node:${node}`);
  replace([SPELT.get(name)], parameters);
}

/** The page that the address names, its arguments, and its parameters. */
export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [said, ...rest] = (path || "fleet").split("/").map(decode);
  const args = rest.filter(Boolean);
  const name = ["pod", "pods"].includes(said) ? (args.length ? "pod" : "pods") : said;
  return { name, args, parameters: new URLSearchParams(query ?? "") };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const readable = query =>
  query.toString().replace(/%3A/g, ":").replace(/%2F/g, "/").replace(/%2C/g, ",");

/** The address of a page; `parameters` without a value are left out. */
export function href(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) if (value) query.set(key, value);
  if (moment.at && !("at" in parameters)) query.set("at", moment.at);
  const said = readable(query);
  const safe = path.split("/").map(encodeURIComponent).join("/");
  return `#/${safe}${said ? `?${said}` : ""}`;
}

/** Change parameters of the address in its place, without going anywhere. */
export function setParameters(changes) {
  const { name, args, parameters } = route();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "" || value === undefined) parameters.delete(key);
    else parameters.set(key, value);
  }
  replace([name, ...args], parameters);
}

/** The address as all links have it, in its place; `args` where the page has found out which are meant. */
export function setCanonical(args = route().args) {
  const { name, parameters } = route();
  replace([name, ...args], parameters);
}

function replace(parts, parameters) {
  const said = readable(parameters);
  history.replaceState(
    null,
    "",
    `#/${parts.map(encodeURIComponent).join("/")}${said ? `?${said}` : ""}`,
  );
}

/** Go to a page. */
export const go = address => {
  location.hash = address.slice(1);
};

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
