// The sign that an answer is worked out: it stands where the answer will, from the first moment on.
//
// It says how far that is, for how long it goes on, and offers to stop. Invariant: while it stands
// there nothing older passes for the answer; whoever hears the page instead of seeing it is told of
// the beginning, of a long wait and of the end, and not of every second.
import { duration, num } from "./format.js";
import { $, html, mount } from "./html.js";
import { answer } from "./parts.js";

const LONG_S = 10;
const TICK_MS = 1000;

/** What stands above while an answer is worked out. */
export const workingAnswer = (words, notes = []) =>
  html`<div class="working">${answer(html`${words}…`, notes)}</div>`;

export class Working {
  /** The elements of the answer and of all that belongs to it; `status` is said, and not seen. */
  constructor({ head, body, status }) {
    this.head = head;
    this.body = body;
    this.status = status;
    this.timer = 0;
  }

  /** An answer is worked out from now on; `old` if what stands below is one to another question. */
  begin(words, { old = false, stop = false } = {}) {
    clearInterval(this.timer);
    this.head.style.minHeight = `${this.head.offsetHeight}px`; // what stands below does not move twice
    mount(
      this.head,
      workingAnswer(words, [
        stop ? html`<button class="btn" data-stop>Stop</button>` : "",
        html`<span id="since" aria-hidden="true"></span>`,
        html`<span id="far"></span>`,
        html`<span id="long"></span>`,
        old ? "what stands below answers the question before" : "",
      ]),
    );
    this.body.setAttribute("aria-busy", "true");
    this.status.textContent = `${words}.`;
    this.heard = "";
    const began = performance.now();
    this.timer = setInterval(() => this.tick((performance.now() - began) / 1000), TICK_MS);
  }

  /** How far it is, as the gateway tells it. */
  far({ step, done, of }) {
    this.heard = `${step}: ${num(done)} of ${num(of)} pods decided`;
    $("#far", this.head).textContent = this.heard;
  }

  tick(seconds) {
    $("#since", this.head).textContent =
      seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
    if (seconds < LONG_S) return;
    const words = this.heard
      ? "a large plan: the gateway goes on, and says so if it takes too long"
      : "no word from the gateway yet: few plans are worked out at a time, and others may be before this one";
    if ($("#long", this.head).textContent === words) return;
    $("#long", this.head).textContent = words;
    this.status.textContent = `Still working: ${words}. ${this.heard}`;
  }

  /** The answer, or why there is none, stands there now; these words are said of it. */
  end(words) {
    clearInterval(this.timer);
    this.head.style.minHeight = "";
    this.body.setAttribute("aria-busy", "false");
    this.status.textContent = words;
  }
}
