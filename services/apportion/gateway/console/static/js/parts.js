// Parts that pages share: the headline, error pages, lists of causes, controls.
import { html, ICONS, mount } from "./html.js";
import { Problem } from "./api.js";
import { num } from "./format.js";
import { link } from "./words.js";
import { restOf, sentence, sentenceCase, withCode } from "./typography.js";

/** The headline that answers the page's question, with notes below it. */
export const answer = (headline, notes = []) =>
  html`<header class="answer">
    <h1>${withCode(headline)}</h1>
    ${
      notes.length
        ? html`<p class="sub">
            ${notes.filter(Boolean).map(note => html`<span>${withCode(note)}</span>`)}
          </p>`
        : ""
    }
  </header>`;

/** A page whose data is not there yet, as in index.html. */
export const SKELETON = html`<div class="page skeleton" aria-hidden="true">
  <i></i><i></i><i></i><i></i>
</div>`;

/**
 * A page with only a headline, an explanation and links.
 * @type {(sentence: any, more?: any, links?: any[]) => any}
 */
export const onlySays = (headline, more = "", links = []) =>
  html`<div class="page">
    ${answer(headline)}${
      more || links.length
        ? html`<section class="card">
            ${more ? html`<p class="lead">${withCode(more)}</p>` : ""}${
              links.length ? html`<div class="acts">${links}</div>` : ""
            }
          </section>`
        : ""
    }
  </div>`;

/** The error page for a Problem. `about` names the missing content; `again` is offered if a retry may help. */
export function problemPage(problem, about, again = []) {
  if (!(problem instanceof Problem)) throw problem;
  if (problem.unknown) {
    return onlySays(
      `This gateway does not support ${about}`,
      "It is older than this console, or serves only part of the API.",
      [link("fleet", "Fleet", {}, "btn")],
    );
  }
  const links = problem.passing ? again : [];
  if (problem.status === 0)
    return onlySays("Gateway unreachable", "This page retries automatically.", links);
  return onlySays(sentence(problem.message), problem.fix ? sentence(problem.fix) : "", links);
}

/** The same within a section of a page. */
export function problemNote(problem, about) {
  if (!(problem instanceof Problem)) throw problem;
  const said = problem.unknown
    ? `This gateway does not support ${about}.`
    : sentence(problem.message);
  return html`<p class="faint">
    ${withCode(`${said}${problem.fix && !problem.unknown ? ` ${sentence(problem.fix)}` : ""}`)}
  </p>`;
}

/** The causes of a refusal, each with a bar for its share of the nodes, and its fix. */
export const causeList = (causes, nodes) =>
  html`<ul class="causes">
    ${causes.map(cause => html`<li>${causeBar(cause, nodes)}${cure(cause)}</li>`)}
  </ul>`;

function causeBar(cause, nodes) {
  // a limit, which is not about nodes
  if (!cause.nodes) return html`<div class="cz"><span>${withCode(cause.words)}</span></div>`;
  const look = cause.off_offer ? "warn" : "bad";
  return html`<div class="cz">
    <span>${withCode(cause.words)}</span><b class="m">${num(cause.nodes)}</b
    ><i class="${look}"><i data-s="width:${(100 * cause.nodes) / Math.max(1, nodes)}%"></i></i>
  </div>`;
}

/** The fix of a cause: a command with a copy button, or a sentence. */
function cure({ unblocked_by: words, command: line, cure: besides, people }) {
  if (!words) return "";
  if (!line) return html`<p class="cure">${withCode(sentenceCase(words))}.</p>`;
  return html`<div class="cure">
    ${command(line)}${besides || people ? html`<span>${withCode(restOf(besides))} ${people}</span>` : ""}
  </div>`;
}

/** A lead with clauses; several clauses have a line each. */
export const clauses = (lead, listed) =>
  listed.length < 2
    ? html`${lead}${listed}`
    : html`${lead}${listed.map(each => html`<span class="clause">${each}</span>`)}`;

/** A row of buttons, one of which is pressed. */
export const segments = (name, label, options, chosen) =>
  html`<div class="seg" role="group" aria-label="${label}">
    ${options.map(
      ([value, words]) =>
        html`<button
          id="${name}-${value}"
          data-${name}="${value}"
          aria-pressed="${String(value === chosen)}"
        >
          ${words}
        </button>`,
    )}
  </div>`;

/** The hidden columns of a table as a second line of the row; only visible on narrow screens. */
export const second = said =>
  html`<div class="second">${said.filter(Boolean).map(each => html`<span>${each}</span>`)}</div>`;

/** The search field, which `/` focuses. */
export const searchField = (value, placeholder, label) =>
  html`<label class="search"
    >${ICONS.find}<input
      id="q"
      type="search"
      value="${value}"
      placeholder="${placeholder}"
      aria-label="${label}"
      autocomplete="off"
      spellcheck="false"
    /><kbd>/</kbd></label
  >`;

/** Words joined as in `1 node, 8 GPUs and 3 pods`. */
export const listed = words =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

/** Words joined as in `a, b or c`. */
export const either = words =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} or ${words.at(-1)}`;

/** A command with a copy button. */
export const command = text =>
  html`<div class="fix">
    <code>${text}</code
    ><button class="cp" data-copy="${text}" aria-label="Copy: ${text}">${ICONS.copy}</button>
  </div>`;

/** Copy the text of a pressed copy button. Without TLS there may be no clipboard: the text is selected. */
export async function copyFrom(event) {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    mount(button, ICONS.ok);
    button.classList.add("done");
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
  }
}
