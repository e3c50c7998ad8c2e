// How a text of the gateway is set: its code, its capital, its stop and its times. The one module that
// may look into a text, and only to change how that looks: no function here says what a text means.
import { instant, when } from "./format.js";
import { html } from "./html.js";
import { shownTime } from "./moment.js";

/** A text whose commands stand between backticks, as the gateway writes them; what is no text stays. */
export const withCode = text =>
  typeof text === "string"
    ? text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))
    : text;

/** With a capital letter, unless it begins with a name. */
export const sentenceCase = text =>
  /^[a-z]+(?=[ ,:;.]|$)/.test(text ?? "") ? text[0].toUpperCase() + text.slice(1) : (text ?? "");

/** A sentence of its own: with a capital letter, and with a full stop unless it has an end. */
export const sentence = text => `${sentenceCase(text)}${/[.!?]$/.test(text) ? "" : "."}`;

/** A sentence whose times are as pages have them: the ledger's own, 2026-11-26T12:55:32Z, by the reader's clock. */
export const ownTimes = text =>
  text.replace(/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, time =>
    when(instant(time), shownTime()),
  );
