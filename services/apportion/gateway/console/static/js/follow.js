// The newest revision, as it comes: one waiting question at a time, answered when something happens.
//
// The gateway holds `at_least` until it has folded that revision, so nothing is asked in vain and no
// event crosses the wire only to be counted. At most four answers a second, however much happens.
// Whether placements are frozen is asked for apart: a full ledger has no next event that would tell.

const PACE_MS = 250;
const WAIT_S = 25;
const FROZEN_MS = 5000;
const RETRY_MS = [500, 1000, 2000, 5000];

const pause = ms =>
  new Promise(resolve => {
    setTimeout(resolve, ms);
  });

/**
 * Tell `{revision, frozen}` for whatever is new, and `{problem}` while the gateway does not answer.
 * `frozen` is why no pod can be placed, or empty.
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

/** Call `found` with the newest answer now and then; a failure is told by the other loop. */
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
      tell({ problem: error instanceof TypeError ? "no answer" : error.message });
      revision = 0;
      await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
      failures += 1;
    }
  }
}

/** In a shared worker: one follower for all tabs of a browser; who comes later has the last word. */
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
