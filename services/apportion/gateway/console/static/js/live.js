// What happens now, told to the page: through one worker for all tabs, or alone where a browser has
// no shared workers.
import { follow } from "./follow.js";
import { moment } from "./moment.js";

/** Call `changed(revision, frozen)` for news and `failed(why)` while there is no answer. */
export function listen(changed, failed) {
  const take = word => {
    if (word.problem) return failed(word.problem);
    moment.newest = Math.max(moment.newest, word.revision);
    return changed(word.revision, word.frozen);
  };
  if (typeof SharedWorker === "undefined") {
    follow(take);
    return;
  }
  const worker = new SharedWorker("/console/js/follow_worker.js", {
    type: "module",
    name: "follow",
  });
  worker.port.addEventListener("message", event => take(event.data));
  worker.port.start();
}
