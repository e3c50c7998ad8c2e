// Live counts in the navigation: pending pods, and problems that Doctor found.
//
// A count is requested only after news from the ledger, while the tab is visible, and at most once per
// interval. A closed or hidden console costs nothing. In the past, the counts are still those of now.
import { getNow, Problem } from "./api.js";
import { many, num } from "./format.js";
import { $, html, mount } from "./html.js";
import { me } from "./login.js";

const SHOWN_MOST = 999;
const PENDING_MS = 3000;
const PROBLEMS_MS = 30_000; // a round of health checks costs more than a summary

/** The number of pending pods in a summary. */
export const pendingOf = ({ phases }) => (phases.refused ?? 0) + (phases.pending ?? 0);

/** The number of problems among the checks of Doctor; warnings do not count. */
export const problemsOf = ({ checks }) => checks.filter(({ state }) => state === "broken").length;

/** The badges of all pages that have a count. */
export class Badges {
  constructor() {
    const pending = new Badge("waiting", "pending pod", PENDING_MS, async () =>
      pendingOf(await getNow("summary")),
    );
    const problems = new Badge("doctor", "problem", PROBLEMS_MS, async () =>
      me.doctor ? problemsOf(await getNow("doctor")) : 0,
    );
    this.all = [pending, problems];
    document.addEventListener("visibilitychange", () => this.news());
  }

  /** Request the counts again, soon. */
  news() {
    for (const badge of this.all) badge.news();
  }
}

/** A count at a page of the navigation; `count` requests it. */
export class Badge {
  constructor(path, noun, interval, count) {
    this.path = path;
    this.noun = noun;
    this.interval = interval;
    this.count = count;
    this.asked = -Infinity;
    this.timer = 0;
  }

  news() {
    if (this.timer || document.hidden) return;
    const wait = Math.max(0, this.asked + this.interval - performance.now());
    this.timer = setTimeout(() => this.ask(), wait);
  }

  /** Request the count and show it. After an error the old count stays until the next news. */
  async ask() {
    this.timer = 0;
    this.asked = performance.now();
    try {
      this.show(await this.count());
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
    }
  }

  show(count) {
    const badge = $(`#nav [data-page="${this.path}"] .badge`);
    badge.hidden = !count;
    mount(
      badge,
      html`<i aria-hidden="true">${count > SHOWN_MOST ? `${SHOWN_MOST}+` : num(count)}</i
        ><i class="unseen">${many(count, this.noun)}</i>`,
    );
  }
}
