// The newest revision, as it comes: one waiting question at a time, answered when something happens.
//
// The gateway holds `at_least` until it has folded that revision, so nothing is asked in vain and no
// event crosses the wire only to be counted. At most four answers a second, however much happens.
// While nothing happens, the answer is asked for every five seconds: a full ledger has no next event.

const PACE_MS = 250;
const WAIT_S = 5;
const RETRY_MS = [500, 1000, 2000, 5000];

const pause = ms => new Promise(resolve => { setTimeout(resolve, ms); });

/**
 * Tell `{revision, frozen}` whenever one of them changes, and `{problem}` while the gateway does not answer.
 * `frozen` is why no pod can be placed, or empty.
 */
export async function follow(tell) {
  let revision = 0;
  let frozen = "";
  let isQuiet = false;
  let failures = 0;
  for (;;) {
    try {
      const query = revision && !isQuiet ? `?at_least=${revision + 1}&wait_s=${WAIT_S}` : "";
      const response = await fetch(`/api/v1/revision${query}`);
      const answer = await response.json();
      if (response.ok) {
        if (revision !== answer.revision || frozen !== answer.frozen) {
          ({ revision, frozen } = answer);
          tell({ revision, frozen });
        }
      } else if (response.status !== 408) {
        throw new Error(answer.error);
      }
      isQuiet = response.status === 408;
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
