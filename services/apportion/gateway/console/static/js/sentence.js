// The gateway's sentences with their subjects as links: the pod that they begin with, the node that
// their subject names. What is not known to be a name stays text.
import { decoded } from "./format.js";
import { html } from "./html.js";
import { nodeLink, podLink } from "./links.js";

const POD_FIRST = /^(?:pod )?([a-z0-9][a-z0-9-]*)\/([a-z0-9][a-z0-9.-]*)(?=[ :])/;
const OF_A_NODE =
  /^apportion\.v1\.(?:inventory|allocation|placement|binding|presence|usage|operator\.node|cluster\.node)\.([^.]+)$/;

/** The node that a subject names; empty where it names none. */
export const nodeOf = subject => decoded((OF_A_NODE.exec(subject) ?? [])[1] ?? "");

/** A sentence about the event on this subject; without a subject its pod alone is a link. */
export function linked(sentence, subject = "") {
  const pod = POD_FIRST.exec(sentence);
  const rest = pod ? sentence.slice(pod[0].length) : sentence;
  const node = nodeOf(subject);
  const at = node ? rest.search(new RegExp(`(?<![\\w-])${escaped(node)}(?![\\w-])`)) : -1;
  const tail =
    at < 0 ? rest : html`${rest.slice(0, at)}${nodeLink(node)}${rest.slice(at + node.length)}`;
  return pod ? html`${podLink(pod[1], pod[2])}${tail}` : html`${tail}`;
}

const escaped = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
