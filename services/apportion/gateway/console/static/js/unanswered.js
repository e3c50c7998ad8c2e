// What stands in the place of a page that has no answer: why, and a button to ask again.
//
// Invariant: whoever types in the page's search types on, also while it is asked for again, and what
// he has typed is what it shows then; no letter of it becomes a key. A keyboard that was on anything
// else of the page is on the button.
import { $, html, mount } from "./html.js";
import { setParameters } from "./route.js";

/** The button, for the words that stand there. */
export const AGAIN = html`<button class="btn" id="again">Ask again</button>`;

/** Whether somebody types in the search, which is that of a page or what stands for it. */
export const isTyping = () => document.activeElement.id === "q";

/**
 * Show `words` instead of the page, of which something `stands` there or not; gives back what asks
 * again, as the button does, by `show`.
 */
export function standFor(main, words, show, stands) {
  const held = document.activeElement;
  const within = main !== held && main.contains(held);
  const typed = stands && within && isTyping() ? held : null;
  mount(main, words);
  const again = () => askAgain(main, show);
  const button = $("#again");
  button?.addEventListener("click", again);
  if (typed) typeOn(typed, $(".answer", main), again);
  else if (within) (button ?? main).focus();
  return again;
}

/** The field as it was, without what the page did with it. */
function typeOn(typed, after, again) {
  const search = typed.closest("label").cloneNode(true);
  const field = $("input", search);
  field.addEventListener("input", () => setParameters({ q: field.value.trim() }));
  field.addEventListener("keydown", event => {
    if (event.key === "Enter") again();
  });
  after.after(search);
  field.focus();
  field.setSelectionRange(typed.selectionStart, typed.selectionEnd);
}

/** The page that comes has the keyboard where it was, and in its search what was typed until then. */
async function askAgain(main, show) {
  const typed = $("#q", main);
  let held = document.activeElement;
  const note = event => {
    held = event.target;
  };
  main.addEventListener("focusin", note);
  try {
    await show();
  } finally {
    main.removeEventListener("focusin", note);
  }
  if (held === document.body || document.activeElement !== document.body) return;
  const field = held === typed ? $("#q", main) : null;
  (field ?? main).focus({ preventScroll: true });
  if (!field) return;
  const had = field.value;
  field.value = typed.value;
  field.setSelectionRange(typed.selectionStart, typed.selectionEnd);
  if (field.value !== had) field.dispatchEvent(new Event("input", { bubbles: true }));
}
