// The progress indicator in the place of an answer that is being computed.
//
// It shows the progress and the elapsed time, and offers a stop button. Invariants: an older answer is never
// mistaken for the current one, and a screen reader hears the start, a long wait and the end, not each second.
import { duration, num } from "./format.js";
import { $, html, mount } from "./html.js";
import { answer } from "./parts.js";

const LONG_S = 10;
const TICK_MS = 1000;

/** The headline while an answer is being computed. */
export const workingAnswer = (words, notes = []) =>
  html`<div class="working">${answer(html`${words}…`, notes)}</div>`;

export class Working {
  /** `head` and `body` are the elements of the answer; `status` is only for screen readers. */
  constructor({ head, body, status }) {
    this.head = head;
    this.body = body;
    this.status = status;
    this.timer = 0;
  }

  /** Show that an answer is being computed; `old` if the body still shows the previous answer. */
  begin(words, { old = false, stop = false } = {}) {
    clearInterval(this.timer);
    this.head.style.minHeight = `${this.head.offsetHeight}px`; // so that the body moves only once
    mount(
      this.head,
      workingAnswer(words, [
        stop ? html`<button class="btn" data-stop>Stop</button>` : "",
        html`<span id="since" aria-hidden="true"></span>`,
        html`<span id="far"></span>`,
        html`<span id="long"></span>`,
        old ? "previous result below" : "",
      ]),
    );
    this.body.setAttribute("aria-busy", "true");
    this.status.textContent = `${words}.`;
    this.heard = "";
    const began = performance.now();
    this.timer = setInterval(() => this.tick((performance.now() - began) / 1000), TICK_MS);
  }

  /** Show the progress that the gateway reports. */
  far({ step, done, of }) {
    this.heard = `${step}: ${num(done)} of ${num(of)} pods decided`;
    $("#far", this.head).textContent = this.heard;
  }

  tick(seconds) {
    $("#since", this.head).textContent =
      seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
    if (seconds < LONG_S) return;
    const words = this.heard ? "large plan, still running" : "queued behind other plans";
    if ($("#long", this.head).textContent === words) return;
    $("#long", this.head).textContent = words;
    this.status.textContent = `Still working: ${words}. ${this.heard}`;
  }

  /** Stop, because the answer or an error is displayed; a screen reader hears `words`. */
  end(words) {
    clearInterval(this.timer);
    this.head.style.minHeight = "";
    this.body.setAttribute("aria-busy", "false");
    this.status.textContent = words;
  }
}
