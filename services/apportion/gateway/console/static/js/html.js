// Templates that escape whatever is put into them, and a few words for the DOM.
//
// Invariant: text from outside reaches the page as text. Only `html` and `icon` make markup, and
// style attributes, which the policy forbids, go through the CSSOM: write data-s="width:40%".

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

class Markup {
  constructor(text) {
    this.text = text;
  }
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
  values.forEach((value, at) => {
    text += rendered(value) + strings[at + 1];
  });
  return new Markup(text);
}

/** Markup of our own that holds nothing from outside. */
export const trusted = text => new Markup(text);

/** Show the markup in the element, and nothing else; returns the element. */
export function mount(element, markup) {
  element.innerHTML = rendered(markup);
  element.querySelectorAll("[data-s]").forEach(each => {
    each.style.cssText = each.dataset.s;
  });
  return element;
}

/**
 * Show the markup, where some is shown already: what has not changed stays, so that a press lasts over
 * an answer. The keyboard stays on the control that it holds, or where that was; on the page, where nothing is.
 */
export function renew(element, markup) {
  const controls = () => $$('a:not([tabindex="-1"]), button:not(:disabled)', element);
  const isSeen = each => each.checkVisibility();
  const held = document.activeElement;
  const at = controls().indexOf(held);
  match(element, mount(element.cloneNode(false), markup));
  if (at < 0 || held.isConnected) return;
  const left = controls();
  const same = left.find(each => (held.id ? each.id === held.id : isSame(each, held)));
  const next = same ?? left.slice(at).find(isSeen) ?? left.findLast(isSeen);
  (next && isSeen(next) ? next : element.closest("main"))?.focus({ preventScroll: true });
}

function match(element, fresh) {
  const had = [...element.childNodes];
  const come = [...fresh.childNodes];
  come.forEach((node, at) => {
    if (at >= had.length) element.append(node);
    else if (isSame(had[at], node)) match(had[at], node);
    else had[at].replaceWith(node);
  });
  for (const gone of had.slice(come.length)) gone.remove();
}

/** Whether two nodes are the same but for what stands in them. */
const isSame = (one, other) => one.cloneNode(false).isEqualNode(other.cloneNode(false));

/** @type {(selector: string, within?: ParentNode) => any} */
export const $ = (selector, within = document) => within.querySelector(selector);
/** @type {(selector: string, within?: ParentNode) => any[]} */
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
