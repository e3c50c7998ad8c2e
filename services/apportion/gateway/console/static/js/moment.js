// The one moment that all pages show: now, or a moment of the past. It lives in the address.
//
// `at` is what the address says, in the forms of --at: 14:20, 14:20:07, -10m, a date with a time, a
// revision; empty means now. Answers about the past are asked for by the revision that the gateway
// found for it, so that every part of a page is of one moment. What time it is then is what was asked
// for: how long a pod has waited hangs on that, and not on when something last happened.
import { num } from "./format.js";

export const moment = {
  at: "",
  revision: 0,
  time: null, // milliseconds, null where nobody has said
  eventTime: null, // of the newest event by then, of which the state is
  /** @type {any} */
  problem: "", // why there is no answer about the moment that was asked for
  silent: null, // { why, since }: the gateway has no answer since then, in milliseconds; null while it answers
  newest: 0, // the newest revision that the gateway is known to have folded
};

/** Whether the pages show what is now. */
export const isLive = () => !moment.at;

/** The time that the pages show, in milliseconds. */
export const shownTime = () => (isLive() ? Date.now() : (moment.time ?? Date.now()));

/** #1,214,394, as people write a revision. */
export const revisionWords = revision => `#${num(revision)}`;

/** The past as parameters of a request; nothing for now. */
export const pastParameters = () => (isLive() ? {} : { at: String(moment.revision || moment.at) });
