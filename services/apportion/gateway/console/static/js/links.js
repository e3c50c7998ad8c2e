// Links between the pages: a name leads to its story, a count to its list, a revision to its event.
import { num } from "./format.js";
import { html } from "./html.js";
import { namespaceColour } from "./colours.js";
import { revisionWords } from "./moment.js";
import { href } from "./route.js";

/** A link to a page, with its parameters. */
export const link = (path, text, parameters = {}, classes = "") =>
  html`<a class="${classes}" href="${href(path, parameters)}">${text}</a>`;

/** A pod by its name, which leads to its story. */
export const podLink = (namespace, name) =>
  link(`pod/${namespace}/${name}`, html`<span class="ns">${namespace}/</span>${name}`, {}, "m");

/** A node by its name, which leads to its cards. */
export const nodeLink = node => link("fleet", node, { q: `node:${node}` }, "m");

/** A revision, which leads to its event: the receipt of what stands beside it. */
export const receipt = revision =>
  revision ? link("events", revisionWords(revision), { rev: String(revision) }, "rev") : "";

/** The namespace's colour as a dot; its name always stands beside it. */
export const namespaceDot = namespace =>
  html`<i class="nsdot" data-s="background:${namespaceColour(namespace)}"></i>`;

/** A count that leads to what it counts. */
export const count = (path, value, noun, parameters = {}, classes = "") =>
  link(path, `${num(value)} ${noun}`, parameters, classes);

/** The phase of a pod. */
export const phaseChip = phase => html`<span class="chip p-${phase}">${phase}</span>`;
