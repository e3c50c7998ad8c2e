// Templates that escape whatever is put into them, and a few words for the DOM.
//
// Invariant: text from outside reaches the page as text. Only `html` and `icon` make markup, and
// style attributes, which the policy forbids, go through the CSSOM: write data-s="width:40%".

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

class Markup {
  constructor(text) { this.text = text; }
}

const escaped = text => String(text).replace(/[&<>"']/g, char => ESCAPES[char]);

function rendered(value) {
  if (value === null || value === undefined || value === false) return "";
  if (Array.isArray(value)) return value.map(rendered).join("");
  return value instanceof Markup ? value.text : escaped(value);
}

/** Markup of a template; values are escaped, unless they are markup or lists of it. */
export function html(strings, ...values) {
  let text = strings[0];
  values.forEach((value, at) => { text += rendered(value) + strings[at + 1]; });
  return new Markup(text);
}

/** Markup of our own that holds nothing from outside. */
export const trusted = text => new Markup(text);

/** Show the markup in the element, and nothing else; returns the element. */
export function mount(element, markup) {
  element.innerHTML = rendered(markup);
  element.querySelectorAll("[data-s]").forEach(each => { each.style.cssText = each.dataset.s; });
  return element;
}

export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
