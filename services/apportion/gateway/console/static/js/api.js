// Questions to the gateway. A failure is a `Problem`, which says in the gateway's own words what is
// wrong and what to do; `unknown` tells a gateway that has no such question from one with no answer, and
// `passing` says that the same question may well have one later.
import { moment, pastParameters } from "./moment.js";

const BASE = "/api/v1";
const UNAVAILABLE = 503; // as the gateway says it where it can: HTTP has no word left once lines have begun
const LATER = 429; // too many ask, and from 500 on what is the gateway's own trouble
const LINES = "application/x-ndjson";
const UNKNOWN_PATH = "unknown-path"; // a gateway without such a question

export class Problem extends Error {
  constructor(status, answer) {
    super(
      answer?.error || (status ? `the gateway answers ${status}` : "the gateway does not answer"),
    );
    this.status = status;
    this.field = answer?.field ?? "";
    this.fix = answer?.fix ?? "";
    this.passing = !status || status >= LATER;
    this.code = answer?.code ?? "";
    this.unknown = this.code === UNKNOWN_PATH;
  }
}

function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(key, value);
  }
  return `${BASE}/${path}${query.size ? `?${query}` : ""}`;
}

const asked = async (url, options) => read(await reached(fetch(url, options)), url);

async function read(response, url) {
  const answer = parsed(await reached(response.text()));
  if (response.status === 401 && !/\/(me|login)$/.test(url)) location.reload(); // the login has ended
  if (!response.ok || answer === null) throw new Problem(response.status, answer);
  return noted(answer);
}

/** What comes of the gateway; a connection that is not made, or tears, is one that does not answer. */
async function reached(coming) {
  try {
    return await coming;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, null);
  }
}

/** JSON; null for what is none, which is told by its status. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function noted(answer) {
  if (answer.revision > moment.newest) moment.newest = answer.revision;
  return answer;
}

/** The answer as of the moment that the pages show. Raises Problem. */
export const get = (path, parameters = {}, options = {}) =>
  asked(address(path, { ...pastParameters(), ...parameters }), options);

/** The answer as of now, or to a question that has no moment. Raises Problem. */
export const getNow = (path, parameters = {}, options = {}) =>
  asked(address(path, parameters), options);

/**
 * Ask with a body; nothing is changed by it. `tell` hears how far the answer is, where that is
 * told. Raises Problem.
 */
export async function post(path, body, tell, options = {}) {
  const url = address(path, pastParameters());
  const headers = { "Content-Type": "application/json", Accept: `${LINES}, application/json` };
  const response = await reached(
    fetch(url, { method: "POST", body: JSON.stringify(body), headers, ...options }),
  );
  if (!response.ok || !response.headers.get("Content-Type")?.startsWith(LINES))
    return read(response, url);
  for await (const line of linesOf(response.body)) {
    const { progress, error, status, answer } = parsed(line) ?? {};
    if (progress) tell(progress);
    if (error) throw new Problem(status, error);
    if (answer) return noted(answer);
  }
  throw new Problem(UNAVAILABLE, {
    error: "the gateway ended without an answer",
    fix: "ask again",
  });
}

/** The lines of an answer, each as soon as it is whole. */
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reached(reader.read());
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
  if (rest) yield rest;
}

/** Ask for something to be done, now. Raises Problem. */
export const send = (path, body) =>
  asked(address(path, {}), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
  });

/** Of all nodes: as many as a fleet has that can be simulated. */
export const NODES_MOST = 20_000;

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
  try {
    return await answered;
  } catch (problem) {
    if (problem instanceof Problem && statuses.includes(problem.status)) return null;
    throw problem;
  }
}

/** A path of an API from its parts, each escaped. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
