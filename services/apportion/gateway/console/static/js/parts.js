// Parts that pages share: the answer at the top, what stands there while there is none, tables.
import { html, ICONS, mount } from "./html.js";
import { Problem } from "./api.js";
import { num } from "./format.js";
import { link } from "./words.js";
import { sentence, sentenceCase, withCode } from "./typography.js";

/** The sentence that answers the page's question, and what qualifies it. */
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

/**
 * A page that only says one thing, and where to go from there.
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

/**
 * What a page says instead of its answer when the gateway has none; `again` is what may help where
 * one may come later.
 */
export function problemPage(problem, about, again = []) {
  if (!(problem instanceof Problem)) throw problem;
  if (problem.unknown) {
    return onlySays(
      `This gateway does not answer ${about}.`,
      "It is older than this page, or serves only a part of the API.",
      [link("fleet", "The fleet", {}, "btn")],
    );
  }
  const links = problem.passing ? again : [];
  if (problem.status === 0)
    return onlySays("The gateway does not answer.", "This page asks again by itself.", links);
  return onlySays(sentence(problem.message), problem.fix ? sentence(problem.fix) : "", links);
}

/** The same within a card of a page. */
export function problemNote(problem, about) {
  if (!(problem instanceof Problem)) throw problem;
  const said = problem.unknown
    ? `This gateway does not answer ${about}.`
    : sentence(problem.message);
  return html`<p class="faint">
    ${withCode(`${said}${problem.fix && !problem.unknown ? ` ${sentence(problem.fix)}` : ""}`)}
  </p>`;
}

/** Every cause of a refusal, as long as the part of the nodes that it keeps, and what would unblock it. */
export const causeList = (causes, nodes) =>
  html`<ul class="causes">
    ${causes.map(cause => html`<li>${causeBar(cause, nodes)}${cure(cause)}</li>`)}
  </ul>`;

function causeBar(cause, nodes) {
  // a limit: nobody looked at nodes
  if (!cause.nodes) return html`<div class="cz"><span>${withCode(cause.words)}</span></div>`;
  const look = cause.off_offer ? "warn" : "bad";
  return html`<div class="cz">
    <span>${withCode(cause.words)}</span><b class="m">${num(cause.nodes)}</b
    ><i class="${look}"><i data-s="width:${(100 * cause.nodes) / Math.max(1, nodes)}%"></i></i>
  </div>`;
}

/**
 * What would unblock it: a command with a button that copies it, what else has to be and whom it is
 * about; or words.
 */
function cure({ unblocked_by: words, command: line, cure: besides, people }) {
  if (!words) return "";
  if (!line) return html`<p class="cure">${withCode(sentenceCase(words))}.</p>`;
  return html`<div class="cure">
    ${command(line)}${besides || people ? html`<span>${withCode(besides)} ${people}</span>` : ""}
  </div>`;
}

/** A text that lists causes, each on a line of its own. */
export const clauses = (lead, listed) =>
  listed.length < 2
    ? html`${lead}${listed}`
    : html`${lead}${listed.map(each => html`<span class="clause">${each}</span>`)}`;

/** A row of buttons of which one is pressed. */
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

/** What a narrow screen has no columns for, as a second line of the row; a wide one does not show it. */
export const second = said =>
  html`<div class="second">${said.filter(Boolean).map(each => html`<span>${each}</span>`)}</div>`;

/** The field that `/` goes to. */
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

/** 1 node, 8 cards and 3 pods. */
export const listed = words =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

/** A command with a button that copies it. */
export const command = text =>
  html`<div class="fix">
    <code>${text}</code
    ><button class="cp" data-copy="${text}" aria-label="Copy: ${text}">${ICONS.copy}</button>
  </div>`;

/** Copy what a pressed button holds; the clipboard may be closed to a page without TLS. */
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
