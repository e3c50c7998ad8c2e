// The gateway's sentences with the names in them as links. A row and an answer say which of their parts
// are names: what is none stays text.
import { html } from "./html.js";
import { nodeName, podName } from "./words.js";

/**
 * The parts of a sentence: a name with a namespace is that of a pod, another that of a node;
 * `shown` makes a text look.
 */
export const linked = (parts, shown = text => text) =>
  html`${quoted(parts).map(part => (typeof part === "string" ? shown(part) : named(part)))}`;

/** The parts of a sentence in which what people wrote is text as well. */
export const quoted = parts => parts.map(part => (part.quoted ? part.name : part));

/** All that a row says; what was not told, or not read, has no parts. */
export const told = ({ parts, clauses, sentence }) =>
  parts.length ? html`${linked(parts)}${clauses.join("; ")}` : sentence;

/** The pod that a row is about, as namespace and name; nothing where it is about none. */
export const podOf = ({ own, parts }) =>
  own ? parts.find(part => part.namespace !== undefined) : undefined;

/** The node that a row names first; empty where it names none. */
export const nodeOf = ({ parts }) =>
  parts.find(part => part.name && part.namespace === undefined && !part.quoted)?.name ?? "";

const named = ({ namespace, name }) =>
  namespace === undefined ? nodeName(name) : podName(namespace, name);
