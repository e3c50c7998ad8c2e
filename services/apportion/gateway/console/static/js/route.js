// Addresses: #/page/argument?parameter=value. Every link keeps the moment that is shown.
import { moment } from "./moment.js";

/** The page that the address names, its arguments, and its parameters. */
export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = (path || "fleet").split("/").map(decode);
  return { name, args: rest, parameters: new URLSearchParams(query ?? "") };
}

function decode(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

const readable = query => query.toString().replace(/%3A/g, ":").replace(/%2F/g, "/").replace(/%2C/g, ",");

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
  const said = readable(parameters);
  const path = [name, ...args].map(encodeURIComponent).join("/");
  history.replaceState(null, "", `#/${path}${said ? `?${said}` : ""}`);
}

/** Go to a page. */
export const go = address => { location.hash = address.slice(1); };
