// Questions to the gateway. A failure is a `Problem`, which says in the gateway's own words what is
// wrong and what to do; `unknown` tells a gateway that has no such question from one with no answer.
import { moment, pastParameters } from "./moment.js";

const BASE = "/api/v1";

export class Problem extends Error {
  constructor(status, answer) {
    super(answer?.error || (status ? `the gateway answers ${status}` : "the gateway does not answer"));
    this.status = status;
    this.field = answer?.field ?? "";
    this.fix = answer?.fix ?? "";
    this.unknown = status === 404 && /no such path/.test(answer?.error ?? "");
  }
}

function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(key, value);
  }
  return `${BASE}/${path}${query.size ? `?${query}` : ""}`;
}

async function asked(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, null);
  }
  const text = await response.text();
  let answer = null;
  try { answer = JSON.parse(text); } catch { /* an answer that is no JSON is told by its status */ }
  if (response.status === 401 && !/\/(me|login)$/.test(url)) location.reload();  // the login has ended
  if (!response.ok || answer === null) throw new Problem(response.status, answer);
  if (answer.revision > moment.newest) moment.newest = answer.revision;
  return answer;
}

/** The answer as of the moment that the pages show. Raises Problem. */
export const get = (path, parameters = {}, options = {}) =>
  asked(address(path, { ...pastParameters(), ...parameters }), options);

/** The answer as of now, or to a question that has no moment. Raises Problem. */
export const getNow = (path, parameters = {}, options = {}) => asked(address(path, parameters), options);

/** Ask with a body; nothing is changed by it. Raises Problem. */
export const post = (path, body, options = {}) => asked(address(path, pastParameters()), {
  method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, ...options,
});

/** Ask for something to be done, now. Raises Problem. */
export const send = (path, body) => asked(address(path, {}), {
  method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
});

/** All items of a list, page by page, at most `most`. Raises Problem. */
export async function all(path, parameters = {}, most = 5000) {
  const items = [];
  let page = await get(path, { limit: 1000, ...parameters });
  items.push(...page.items);
  while (page.continue && items.length < most) {
    page = await get(path, { limit: 1000, ...parameters, continue: page.continue });
    items.push(...page.items);
  }
  return { revision: page.revision, items, cut: Boolean(page.continue) };
}

/** The answer, or null where that has one of these statuses: there is no such thing. Raises Problem. */
export async function orNone(answered, statuses = [404]) {
  try { return await answered; } catch (problem) {
    if (problem instanceof Problem && statuses.includes(problem.status)) return null;
    throw problem;
  }
}

/** A path of an API from its parts, each escaped. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
