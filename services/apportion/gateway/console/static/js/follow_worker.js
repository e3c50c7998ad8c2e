// One follower for all tabs of a browser: the last word is repeated to whoever comes later.
import { follow } from "./follow.js";

const ports = new Set();
let last = null;

self.addEventListener("connect", event => {
  const [port] = /** @type {MessageEvent} */ (event).ports;
  ports.add(port);
  if (last) port.postMessage(last);
});

follow(word => {
  last = word;
  for (const port of ports) port.postMessage(word);
});
