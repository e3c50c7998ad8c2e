// Templates that escape their values, DOM helpers and icons.
//
// Invariant: outside data reaches the page as text; only `html` and `icon` create markup. The security policy
// forbids style attributes, so write data-s="width:40%", which `mount` applies through the CSSOM.

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

/** The markup of a template. Values are escaped, unless they are markup or lists of it. */
export function html(strings, ...values) {
  let text = strings[0];
  values.forEach((value, at) => {
    text += rendered(value) + strings[at + 1];
  });
  return new Markup(text);
}

/** Literal markup; must not contain outside data. */
export const trusted = text => new Markup(text);

/** Replace the content of an element with the markup; returns the element. */
export function mount(element, markup) {
  element.innerHTML = rendered(markup);
  element.querySelectorAll("[data-s]").forEach(each => {
    each.style.cssText = each.dataset.s;
  });
  return element;
}

/**
 * Update the content of an element in place. Unchanged nodes stay, so a press survives an update. The focus
 * stays on its control, or else moves to the control at that position, or to the page.
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

/** Whether two nodes are equal apart from their children. */
const isSame = (one, other) => one.cloneNode(false).isEqualNode(other.cloneNode(false));

/** @type {(selector: string, within?: ParentNode) => any} */
export const $ = (selector, within = document) => within.querySelector(selector);
/** @type {(selector: string, within?: ParentNode) => any[]} */
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// ---- icons of 16 pixels, in the colour of the surrounding text ----

const icon = paths =>
  trusted(
    `<svg class="i" viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" ` +
      `stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round">${paths}</svg>`,
  );

export const ICONS = {
  fleet: icon('<path d="M2.5 2.5h3v11h-3zM6.5 5.5h3v8h-3zM10.5 2.5h3v11h-3z"/>'),
  pods: icon(
    '<circle cx="4" cy="3.5" r="1.5"/><circle cx="4" cy="12.5" r="1.5"/>' +
      '<path d="M4 5v6M8 3.5h5.5M8 8h4M8 12.5h5.5"/>',
  ),
  waiting: icon('<path d="M4 2h8M4 14h8M5 2c0 4 6 8 6 12M11 2c0 4-6 8-6 12"/>'),
  whatif: icon(
    '<path d="M3 13V8.5A3.5 3.5 0 0 1 6.5 5H13M3 13h10M10.5 2.5 13 5l-2.5 2.5' +
      'M10.5 10.5 13 13l-2.5 2.5"/>',
  ),
  events: icon('<path d="M2 4h2M2 8h2M2 12h2M6.5 4H14M6.5 8H14M6.5 12H14"/>'),
  reports: icon('<path d="M2 13.5h12M2 11l4-4.5 3 2.5 5-6"/>'),
  doctor: icon('<path d="M1.5 8.5h3l1.5-4 3 7 2-5 1 2h2.5"/>'),
  ok: icon('<path d="m3 8.5 3.2 3L13 4.5"/>'),
  broken: icon('<path d="m4 4 8 8M12 4l-8 8"/>'),
  warning: icon('<path d="M8 2.5 14 13H2zM8 6.500v3M8 11.200v.1"/>'),
  play: icon('<path d="M5 3v10l8-5z" fill="currentColor"/>'),
  pause: icon('<path d="M5 3v10M11 3v10" stroke-width="2.4"/>'),
  before: icon('<path d="M12 3 6 8l6 5zM4 3v10"/>'),
  next: icon('<path d="m4 3 6 5-6 5zM12 3v10"/>'),
  sun: icon(
    '<circle cx="8" cy="8" r="3"/><path d="M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1' +
      'M12 12l1 1M3 13l1-1M12 4l1-1"/>',
  ),
  find: icon('<circle cx="7" cy="7" r="4.2"/><path d="m10.2 10.2 3.3 3.3"/>'),
  copy: icon('<path d="M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3"/>'),
  more: icon('<path d="M3.500 8v.1M8 8v.1M12.500 8v.1" stroke-width="2.2"/>'),
  opens: icon('<path d="m6 4 4 4-4 4"/>'),
  close: icon('<path d="m4 4 8 8M12 4l-8 8"/>'),
};
