// A page that loads once and does not change by itself; updates are offered, never pushed.
//
// Nothing moves under the mouse: while the page is live, a button shows the count of new events, and the user
// decides when to load them. Another moment is loaded at once.
// Invariant: only the newest request is rendered; late answers of older ones are dropped.
import { $, html, mount } from "../html.js";
import { num } from "../format.js";
import { isLive, moment } from "../moment.js";

/** Reload a page in the background. Returns whether the result is still current and was applied. */
export async function loadAnew(page) {
  const asked = Object.create(page); // collects the new data until it is known to be current
  page.asking = asked;
  const isOld = () => page.closed || page.asking !== asked;
  try {
    await asked.load();
  } catch (problem) {
    if (isOld()) return false;
    page.asking = null;
    throw problem;
  }
  if (isOld()) return false;
  Object.assign(page, asked);
  page.asking = null;
  return true;
}

/** The button that offers updates; hidden if there are none. */
export const NEWER = html`<button class="newer" id="newer" hidden></button>`;

export class ListPage {
  constructor(main, context) {
    this.main = main;
    this.context = context;
    this.revision = 0;
    this.closed = false;
  }

  /** Load the data of the page. */
  async load() {}

  /** Render the data. */
  draw() {}

  /** Handle clicks on the page's own controls. */
  clicked(_event) {}

  /** Render the parts that are drawn only once, such as a search field. */
  frame() {
    mount(this.main, "");
  }

  /** Load and render the page. */
  async start() {
    await this.load();
    if (!this.context.alive()) return null;
    this.frame();
    this.draw();
    this.main.onclick = event => this.pressed(event);
    return this;
  }

  pressed(event) {
    if (event.target.closest("#newer")) {
      this.ask();
      return;
    }
    this.clicked(event);
  }

  /** Reload on a user's request; an error replaces the page. */
  ask() {
    return this.reload().catch(this.context.failed);
  }

  async reload() {
    if (!(await loadAnew(this))) return;
    const { scrollTop } = this.main;
    this.draw();
    this.main.scrollTop = scrollTop;
  }

  async update(live) {
    if (!live) {
      await this.reload();
      return;
    }
    const behind = moment.newest - this.revision;
    const button = $("#newer", this.main);
    if (button && isLive() && behind > 0) {
      button.hidden = false;
      mount(button, `↻ ${num(behind)} newer`);
    }
  }

  close() {
    this.closed = true;
    this.main.onclick = null;
  }
}
