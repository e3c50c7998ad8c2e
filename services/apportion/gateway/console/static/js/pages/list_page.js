// A page that is asked for once and then stands still: what is new is offered, never pushed in.
//
// Nothing moves under the mouse: while the page is live and the ledger goes on, a button says how
// much has happened since, and showing it is the reader's own act. Another moment is shown at once.
// Invariant: of several questions the newest is answered; what comes of an older one shows nothing.
import { $, html, mount } from "../html.js";
import { num } from "../format.js";
import { isLive, moment } from "../moment.js";

/** Let a page `load` anew, beside what it shows; whether that came and is the page's now. */
export async function loadAnew(page) {
  const asked = Object.create(page); // what is loaded is its own, until it is known to be wanted
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

/** Offers what is new; hidden while nothing is. */
export const NEWER = html`<button class="newer" id="newer" hidden></button>`;

export class ListPage {
  constructor(main, context) {
    this.main = main;
    this.context = context;
    this.revision = 0;
    this.closed = false;
  }

  /** Ask for what the page shows. */
  async load() {}

  /** Show what came. */
  draw() {}

  /** What a press does that is none on what is newer. */
  clicked(_event) {}

  /** What is drawn once, as a field in which somebody may type. */
  frame() {
    mount(this.main, "");
  }

  /** Ask and show; `load` and `draw` are the page's own, and so may `frame` be. */
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

  /** What somebody asks for, or why that has no answer. */
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
