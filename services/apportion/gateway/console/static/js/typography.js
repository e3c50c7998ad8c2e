// Typography for the gateway's texts: code, capital letter, full stop and times. This is the only module that
// may look into a text, and only to format it; no function here interprets one.
import { instant, when } from "./format.js";
import { html } from "./html.js";
import { shownTime } from "./moment.js";

/** A text with its `backticks` as code; markup stays as it is. */
export const withCode = text =>
  typeof text === "string"
    ? text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))
    : text;

/** The text with a capital letter, unless it begins with a name. */
export const sentenceCase = text =>
  /^[a-z]+(?=[ ,:;.]|$)/.test(text ?? "") ? text[0].toUpperCase() + text.slice(1) : (text ?? "");

/** The text as a sentence, with a capital letter and a full stop. */
export const sentence = text => `${sentenceCase(text)}${/[.!?]$/.test(text) ? "" : "."}`;

/** What follows a command in a text, as a sentence of its own; empty if nothing follows. */
export const restOf = text => (text ? sentence(text.replace(/^[,;]\s*/, "")) : "");

/** The text with UTC timestamps, such as 2026-11-26T12:55:32Z, replaced by local times. */
export const ownTimes = text =>
  text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, time =>
    when(instant(time), shownTime()),
  );
