// Follows the newest revision by long polling.
//
// A request with `at_least` returns once the gateway has folded that revision, so no request is wasted and no
// event is sent only to be counted. There are at most four answers per second. A second loop asks whether
// placement is frozen, because a full ledger has no next event to report that.

const PACE_MS = 250;
const WAIT_S = 25;
const FROZEN_MS = 5000;
const RETRY_MS = [500, 1000, 2000, 5000];

const pause = ms =>
  new Promise(resolve => {
    setTimeout(resolve, ms);
  });

/**
 * Call `tell` with `{revision, frozen}` for each change, and with `{problem}` while the gateway is
 * unreachable. `frozen` is the reason why no pod can be placed, or empty.
 */
export function follow(tell) {
  let frozen = "";
  const tellAll = answer => {
    ({ frozen } = answer);
    tell(answer);
  };
  followRevision(tellAll);
  followFrozen(answer => {
    if (answer.frozen !== frozen) tellAll(answer);
  });
}

/** Call `found` with the current answer every few seconds; the other loop reports failures. */
async function followFrozen(found) {
  for (;;) {
    await pause(FROZEN_MS);
    try {
      const response = await fetch("/api/v1/revision");
      if (response.ok) found(await response.json());
    } catch {
      /* see followRevision */
    }
  }
}

async function followRevision(tell) {
  let revision = 0;
  let failures = 0;
  for (;;) {
    try {
      const query = revision ? `?at_least=${revision + 1}&wait_s=${WAIT_S}` : "";
      const response = await fetch(`/api/v1/revision${query}`);
      const answer = await response.json();
      if (response.ok) {
        ({ revision } = answer);
        tell(answer);
      } else if (response.status !== 408) {
        throw new Error(answer.error);
      }
      failures = 0;
      await pause(PACE_MS);
    } catch (error) {
      tell({ problem: error instanceof TypeError ? "offline" : error.message });
      revision = 0;
      await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
      failures += 1;
    }
  }
}

/** In a shared worker: follow once for all tabs; a new tab receives the last message. */
function serve() {
  const ports = new Set();
  let last = null;
  globalThis.addEventListener("connect", event => {
    const [port] = /** @type {MessageEvent} */ (event).ports;
    ports.add(port);
    if (last) port.postMessage(last);
  });
  follow(word => {
    last = word;
    for (const port of ports) port.postMessage(word);
  });
}

if ("onconnect" in globalThis) serve();
