// The frame: which page is shown, the moment that all of them show, and what is new.
//
// A page is a module with `open(main, context)`, which shows itself and gives back what the frame
// may call: `update(live)` when the moment or the revision has changed, `close()`, `theme()`. `left` of
// the context is the signal that the page is left, also while it still opens; `failed` shows why what
// somebody asked of the page has no answer, in its place, and `mention` says it of what nobody asked for.
// Invariant: one page is open at a time, and answers for one that was closed show nothing. What stands
// there is of the moment that is shown, and of what was asked last, or says why it is not.
import { openActs } from "./act.js";
import { getNow, Problem } from "./api.js";
import { askedMoment, isLive, moment } from "./moment.js";
import { meetNamespaces, OTHER } from "./colours.js";
import { follow as followLedger } from "./follow.js";
import { $, $$, html, ICONS, mount } from "./html.js";
import { openKeys, openPalette } from "./keys.js";
import { link } from "./words.js";
import { known } from "./login.js";
import { NAVIGATION, pageOf } from "./pages.js";
import { onlySays, problemPage } from "./parts.js";
import {
  addressedMoment,
  isCompared,
  route,
  setAddressedMoment,
  setCanonical,
  setParameters,
  setSpelt,
} from "./route.js";
import { TimeBar } from "./timebar.js";

const AGAIN_MS = 2000;
const FROZEN = {
  "ledger-full": "ledger full",
  "ledger-silent": "ledger silent",
  "ledger-drifted": "ledger settings",
  "no-scheduler": "no scheduler",
  "no-intake": "no intake",
  "no-agent": "no agent",
};
const main = $("#main");
const root = document.documentElement;
let page = null;
let leaving = new AbortController();
let turn = 0;
let shownAt = "";
let found = Promise.resolve(); // what the gateway says of that moment
let shownPage = "";
let stands = ""; // the page of which something stands there, while another one may be asked for
let missed = null; // asks again for the page that could not be had, for the gateway did not answer

/** Show the page that the address names, at the moment that it names. */
async function show() {
  const address = location.hash;
  setSpelt();
  const at = addressedMoment();
  const asked = route();
  const { name } = asked;
  if (name === "pod") setCanonical();
  turn += 1;
  const mine = turn;
  missed = null;
  leaving.abort();
  leaving = new AbortController();
  const left = leaving.signal;
  const failed = problem => {
    if (mine === turn || !(problem instanceof Problem)) fail(problem, name);
  };
  page?.close?.();
  page = null;
  main.setAttribute("aria-busy", "true");
  markPage(name);
  await seek(at);
  if (mine !== turn) return;
  bar.draw();
  if (shownPage !== location.hash.split("?")[0]) main.scrollTop = 0;
  shownPage = location.hash.split("?")[0];
  try {
    const named = pageOf(name);
    if (!named) {
      mount(main, noSuchPage(name));
      return;
    }
    if (moment.problem && !isCompared(asked)) throw moment.problem; // Compare says of which of its moments that is
    /** @type {any} */
    const loaded = await named.load().catch(unreached);
    if (mine !== turn) return;
    const opened = await loaded.open(main, {
      ...asked,
      setParameters,
      left,
      failed,
      mention,
      alive: () => mine === turn,
    });
    if (mine !== turn) opened?.close?.();
    else page = opened;
  } catch (problem) {
    failed(problem);
  } finally {
    if (mine === turn) {
      main.setAttribute("aria-busy", "false");
      main.dataset.shown = address;
      stands = name;
    }
  }
}

/** What is shown has no answer: that stands in the place of the page. Throws what is no Problem. */
function fail(problem, name) {
  const words = problemPage(problem, pageOf(name)?.about ?? "that", [AGAIN]);
  bar.stop();
  page?.close?.();
  page = null;
  const again = standFor(words, stands === name);
  missed = problem.status ? null : again;
}

/** A page's own module comes of the gateway too; what is wrong in one is no matter of that. */
function unreached(error) {
  throw error instanceof TypeError ? new Problem(0, null) : error;
}

/** An old or mistyped address shows no other page as if that were meant. */
const noSuchPage = name =>
  onlySays(
    html`No such page: <span class="m">${name}</span>.`,
    "The address names none of the pages of this console, which are these.",
    NAVIGATION.map(({ path, title }) => link(path, title, {}, "btn")),
  );

function markPage(name) {
  const nav = pageOf(name)?.under ?? name;
  document.title = `${pageOf(nav)?.title ?? "No such page"} · Apportion`;
  for (const each of $$("#nav a")) {
    if (each.dataset.page === nav) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

/** Make `at` the moment of all pages; who asks for the same one meanwhile waits for the same answer. */
function seek(at) {
  if (at !== shownAt || moment.problem) {
    shownAt = at;
    found = find(at);
  }
  return found;
}

/** What a moment means is the gateway's to say; an answer about one that is left again changes nothing. */
async function find(at) {
  moment.at = at;
  moment.problem = "";
  if (at) {
    try {
      const { revision, time } = await getNow("moment", { at });
      if (at !== moment.at) return;
      moment.revision = revision;
      moment.eventTime = Date.parse(time);
      moment.time = timeOf(at, moment.eventTime);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (at !== moment.at) return;
      moment.problem = problem;
      moment.revision = 0;
      moment.time = moment.eventTime = null;
    }
  }
  root.classList.toggle("past", Boolean(at));
}

/** What time it is at a moment: the one that was asked for, and never one to come; a revision has that of its event. */
function timeOf(at, eventTime) {
  const asked = askedMoment(at, Date.now()).ms ?? eventTime;
  return Math.max(eventTime, Math.min(asked, Date.now()));
}

/** Another moment, on the page that is open: the address changes in its place. */
async function setMoment(at) {
  setAddressedMoment(at);
  const had = moment.problem;
  await seek(at);
  bar.draw();
  if (had || moment.problem || !page?.update) {
    await show();
    return;
  }
  const mine = turn;
  try {
    await page.update(false);
  } catch (problem) {
    if (problem instanceof Problem && (mine !== turn || at !== moment.at)) return;
    fail(problem, route().name);
  }
}

const bar = new TimeBar($("#time"), setMoment);

// ---- what is new ----

async function news() {
  bar.news();
  if (isLive() && page?.update) {
    try {
      await page.update(true);
    } catch (problem) {
      mention(problem);
    }
  }
}

function mention(problem) {
  if (!(problem instanceof Problem)) throw problem;
  says(problem.message, false);
}

function says(words, good) {
  $("#link").textContent = words;
  $("#dot").classList.toggle("off", !good);
}

/** While there is no answer nothing is live, and the time bar says since when. */
function silent(why) {
  says(why, false);
  moment.silent = { why, since: moment.silent?.since ?? Date.now() };
  root.classList.add("silent");
  bar.drawClock();
}

/** While no pod can be placed, the badge and the light of the time bar are red, and say why. */
function freeze(why) {
  const words = why ? (FROZEN[why] ?? why) : location.host;
  says(words, !why);
  root.classList.toggle("frozen", Boolean(why));
  $("#link").title = why ? `No pod is placed: ${words}. See Doctor.` : "";
}

/**
 * It answers again: a page that could not be had is asked for anew, with its module, which a
 * browser may have noted as lost.
 */
function answers(frozen) {
  freeze(frozen);
  if (!moment.silent) {
    if (missed) askLater(missed); // one question was lost, and nothing else
    return;
  }
  moment.silent = null;
  root.classList.remove("silent");
  bar.drawClock();
  if (missed && isTyping()) missed();
  else if (missed) location.reload();
}

function askLater(again) {
  setTimeout(() => {
    if (missed === again) again();
  }, AGAIN_MS);
}

let unheard = false;
let telling = false;

/** Pages are told once for all that came since; what comes while they are told has a round of its own. */
async function tell() {
  unheard = true;
  if (telling) return;
  telling = true;
  try {
    while (unheard) {
      await new Promise(requestAnimationFrame);
      unheard = false;
      await news();
    }
  } finally {
    telling = false;
  }
}

const follow = () =>
  listen(
    (revision, frozen) => {
      answers(frozen);
      tell();
    },
    why => silent(why.length > 40 ? "not ready" : why),
  );

/**
 * Call `changed(revision, frozen)` for news and `failed(why)` while there is no answer: through one
 * worker for all tabs, or alone where a browser has no shared workers.
 */
function listen(changed, failed) {
  const take = word => {
    if (word.problem) return failed(word.problem);
    moment.newest = Math.max(moment.newest, word.revision);
    return changed(word.revision, word.frozen);
  };
  if (typeof SharedWorker === "undefined") {
    followLedger(take);
    return;
  }
  const worker = new SharedWorker("/console/js/follow.js", {
    type: "module",
    name: "follow",
  });
  worker.port.addEventListener("message", event => take(event.data));
  worker.port.start();
}

// ---- what stands in the place of a page that has no answer: why, and a button to ask again ----
//
// Invariant: whoever types in the page's search types on, also while it is asked for again, and what
// he has typed is what it shows then; no letter of it becomes a key. A keyboard that was on anything
// else of the page is on the button.

/** The button, for the words that stand there. */
const AGAIN = html`<button class="btn" id="again">Ask again</button>`;

/** Whether somebody types in the search, which is that of a page or what stands for it. */
const isTyping = () => document.activeElement.id === "q";

/**
 * Show `words` instead of the page, of which something is shown there or not; gives back what asks
 * again, as the button does.
 */
function standFor(words, isShown) {
  const held = document.activeElement;
  const within = main !== held && main.contains(held);
  const typed = isShown && within && isTyping() ? held : null;
  mount(main, words);
  const again = () => askAgain(); // another one for each time: it says which time is still missed
  const button = $("#again");
  button?.addEventListener("click", again);
  if (typed) typeOn(typed, $(".answer", main));
  else if (within) (button ?? main).focus();
  return again;
}

/** The field as it was, without what the page did with it. */
function typeOn(typed, after) {
  const search = typed.closest("label").cloneNode(true);
  const field = $("input", search);
  field.addEventListener("input", () => setParameters({ q: field.value.trim() }));
  field.addEventListener("keydown", event => {
    if (event.key === "Enter") askAgain();
  });
  after.after(search);
  field.focus();
  field.setSelectionRange(typed.selectionStart, typed.selectionEnd);
}

/** The page that comes has the keyboard where it was, and in its search what was typed until then. */
async function askAgain() {
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

// ---- theme, navigation, keys ----

function setTheme(name) {
  root.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch {
    /* storage may be off */
  }
  bar.draw();
  page?.theme?.();
}

/** On a phone the foot of the side has no room: what it offers stands in a dialog. */
function openMore() {
  const dialog = $("#dialog");
  const offered = ["#goto span", "#me", "#theme", "#help"]
    .map(each => $(each))
    .filter(each => !each.hidden);
  dialog.setAttribute("aria-label", "More");
  mount(
    dialog,
    html`<h2>More</h2>
      <div class="more">
        ${offered.map(
          (each, at) =>
            html`<button class="cmd" data-at="${at}">
              ${each.getAttribute("aria-label") ?? each.textContent}
            </button>`,
        )}
      </div>`,
  );
  dialog.showModal();
  for (const button of $$("[data-at]", dialog)) {
    button.addEventListener("click", () => {
      dialog.close();
      offered[button.dataset.at].click();
    });
  }
}

const flipTheme = () => setTheme(root.dataset.theme === "dark" ? "light" : "dark");

mount(
  $("#nav"),
  NAVIGATION.map(
    ({ path, title, icon }, at) =>
      html`<a href="#/${path}" data-page="${path}"
        >${icon}<span>${title}</span><kbd>${at + 1}</kbd></a
      >`,
  ),
);
mount($("#theme"), ICONS.sun).addEventListener("click", flipTheme);
$("#gotokey").textContent = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘K" : "Ctrl K";
mount($("#more"), html`${ICONS.more}<span>More</span>`).addEventListener("click", openMore);
$("#goto").addEventListener("click", () => openPalette(NAVIGATION));
openKeys({ pages: NAVIGATION, bar, flipTheme, main });

document.addEventListener("click", event => {
  if (event.target.closest(".skip")) {
    event.preventDefault();
    main.focus();
    return;
  }
  const anchor = event.target.closest('a[href^="#/"]');
  if (!anchor || !moment.at) return;
  const address = anchor.getAttribute("href");
  if (/[?&]at=/.test(address) || anchor.dataset.now) return;
  anchor.setAttribute("href", `${address}${address.includes("?") ? "&" : "?"}at=${moment.at}`);
  setTimeout(() => anchor.setAttribute("href", address)); // for this click alone: the next may be in another moment
});

/** Namespaces first, those that hold most before others, so that all pages agree on colours. */
async function begin() {
  await known(main);
  addEventListener("hashchange", show);
  addEventListener("resize", () => bar.draw());
  openActs();
  follow();
  try {
    const { items } = await getNow("namespaces");
    meetNamespaces(items.slice(0, OTHER).map(item => item.namespace));
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
  }
  await Promise.all([show(), bar.news()]);
}
begin();
