// What stands in the place of a page that has no answer: why, and a button to ask again.
//
// Invariant: whoever types there types on, and what he has typed is what the page is asked for again;
// no letter of it becomes a key. A keyboard that was on anything else of the page is on the button.
import { $, mount } from "./html.js";
import { setParameters } from "./route.js";

/** Show `words` instead of the page, which `show` asks for again; gives back what the button does. */
export function standFor(main, words, show) {
  const held = document.activeElement;
  const within = main !== held && main.contains(held);
  const typed = within && held.id === "q" ? held : null;
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
  field.addEventListener("keydown", event => { if (event.key === "Enter") again(); });
  after.after(search);
  field.focus();
  field.setSelectionRange(typed.selectionStart, typed.selectionEnd);
}

async function askAgain(main, show) {
  const typed = document.activeElement.id === "q";
  await show();
  if (document.activeElement !== document.body) return;
  const field = typed ? $("#q", main) : null;
  (field ?? main).focus({ preventScroll: true });
  field?.setSelectionRange(field.value.length, field.value.length);
}
