// Requests to the gateway. A failure throws a `Problem` with the gateway's own message and fix. `unknown`
// means that the gateway has no such endpoint, and `passing` that a retry may succeed.
import { moment, pastParameters } from "./moment.js";

const BASE = "/api/v1";
const UNAVAILABLE = 503; // for a stream that breaks off: its HTTP status has been sent already
const LATER = 429; // too many requests; 500 and above are errors of the gateway itself
const LINES = "application/x-ndjson";
const UNKNOWN_PATH = "unknown-path"; // error code of a gateway without this endpoint

export class Problem extends Error {
  constructor(status, answer) {
    super(
      answer?.error ||
        (status ? `the gateway returned HTTP ${status}` : "the gateway is unreachable"),
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

/** Await a response; a connection that fails or breaks throws a Problem with status 0. */
async function reached(coming) {
  try {
    return await coming;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, null);
  }
}

/** Parsed JSON, or null if the text is not JSON. */
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

/** The answer at the moment that the pages show. Throws Problem. */
export const get = (path, parameters = {}, options = {}) =>
  asked(address(path, { ...pastParameters(), ...parameters }), options);

/** The answer as of now, or of an endpoint that takes no moment. Throws Problem. */
export const getNow = (path, parameters = {}, options = {}) =>
  asked(address(path, parameters), options);

/** Send a read-only request with a body. `tell` receives the progress, if reported. Throws Problem. */
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
    error: "the gateway closed the connection before it answered",
    fix: "try again",
  });
}

/** The lines of a response body, each as soon as it is complete. */
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

/** Send a request that changes something. Throws Problem. */
export const send = (path, body) =>
  asked(address(path, {}), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
  });

/** The most nodes to list: the size of the largest fleet that can be simulated. */
export const NODES_MOST = 20_000;

/** All items of a list, page by page, until there are at least `most`. Throws Problem. */
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

/** The answer, or null if the request fails with one of these statuses. Throws Problem. */
export async function orNone(answered, statuses = [404]) {
  try {
    return await answered;
  } catch (problem) {
    if (problem instanceof Problem && statuses.includes(problem.status)) return null;
    throw problem;
  }
}

/** The answer, or the Problem if the request fails. */
export async function orProblem(answered) {
  try {
    return await answered;
  } catch (problem) {
    if (problem instanceof Problem) return problem;
    throw problem;
  }
}

/** A path from its parts, each escaped. */
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
