// Addresses: #/page/argument?parameter=value. Every link keeps the current moment.
//
// A pod's page is #/pod/NAMESPACE/NAME. #/pods/NAMESPACE/NAME and a few other spellings lead to the canonical
// address of their page.
//
// The moment of an address is `at`, or the later one of two that are compared (`diff=FROM,TO`). The compare
// page has no third moment: the time bar shows and changes the later one.
// Invariant: an address with `diff` has no `at`, and its moments do not change between two reads.
import { askedMoment, moment, withPlus } from "./moment.js";

const SPELT = new Map([
  ["what-if", "whatif"],
  ["pending", "waiting"],
  ["queue", "waiting"],
  ["event", "events"],
  ["report", "reports"],
  ["nodes", "fleet"],
  ["node", "fleet"],
]);

/** Replace an alternative spelling by the canonical address. A node is on the fleet page. */
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

/** The page, the arguments and the parameters of the current address. */
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

/** The address of a page; empty `parameters` are omitted. */
export function href(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) if (value) query.set(key, value);
  if (moment.at && !("at" in parameters)) query.set("at", moment.at);
  const said = readable(query);
  const safe = path.split("/").map(encodeURIComponent).join("/");
  return `#/${safe}${said ? `?${said}` : ""}`;
}

/** Change parameters of the current address, without navigating. */
export function setParameters(changes) {
  const { name, args, parameters } = route();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "" || value === undefined) parameters.delete(key);
    else parameters.set(key, value);
  }
  replace([name, ...args], parameters);
}

/** Replace the current address by the canonical one; `args` if the page has resolved its arguments. */
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

/** Both moments of a comparison; the second defaults to now. */
export function bothMoments(parameters) {
  const [from, to] = parameters
    .get("diff")
    .split(",")
    .map(each => withPlus(each.trim()));
  return [from, to || NOW].map(each => askedMoment(each, Date.now()));
}

/** The moment of the address, empty for now. Relative moments of a comparison are replaced by fixed ones. */
export function addressedMoment() {
  const asked = route();
  if (!isCompared(asked)) return withPlus(asked.parameters.get("at") ?? "");
  const [from, to] = bothMoments(asked.parameters);
  setParameters({ diff: `${from.asked},${to.asked}`, at: "" });
  return to.asked === NOW ? "" : to.asked;
}

/** Set the moment of the open page in its address. */
export function setAddressedMoment(at) {
  const asked = route();
  if (!isCompared(asked)) {
    setParameters({ at });
    return;
  }
  setParameters({ diff: `${bothMoments(asked.parameters)[0].asked},${at || NOW}` });
}
