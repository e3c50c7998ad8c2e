// The frame around every page: routing, the moment that all pages show, and live updates.
//
// A page is a module with `open(main, context)`. It renders itself and returns callbacks for the frame:
// `update(live)` after the moment or the revision changed, `close()` and `theme()`. In the context, `left`
// is aborted when the user leaves the page, even while it is still opening. `failed` replaces the page with
// the error of a user's request; `mention` shows the error of a background request in the status line.
// Invariants: one page is open at a time, and a late answer for a closed page renders nothing. The page
// shows the newest question at the current moment, or the error that prevents it.
import { openActs } from "./act.js";
import { getNow, Problem } from "./api.js";
import { Badges } from "./badges.js";
import { askedMoment, isLive, moment } from "./moment.js";
import { meetNamespaces, OTHER } from "./colours.js";
import { follow as followLedger } from "./follow.js";
import { $, $$, html, ICONS, mount } from "./html.js";
import { openKeys, openPalette } from "./keys.js";
import { link } from "./words.js";
import { known } from "./login.js";
import { NAVIGATION, pageOf } from "./pages.js";
import { onlySays, problemPage, SKELETON } from "./parts.js";
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
const SKELETON_MS = 80; // a page that takes longer shows that it is coming
const FROZEN = {
  "ledger-full": "ledger full",
  "ledger-silent": "ledger not writable",
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
let found = Promise.resolve(); // resolves when the gateway has resolved that moment
let shownPage = "";
let stands = ""; // the page whose content is displayed, while another may be loading
let skeleton = 0; // a timer
let missed = null; // retries the page that failed because the gateway was unreachable

/** Show the page and the moment of the current address. */
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
  const isOther = shownPage !== location.hash.split("?")[0];
  shownPage = location.hash.split("?")[0];
  clearTimeout(skeleton);
  if (isOther) skeleton = setTimeout(showSkeleton, SKELETON_MS, main.firstElementChild);
  await seek(at);
  if (mine !== turn) return;
  bar.draw();
  if (isOther) main.scrollTop = 0;
  try {
    const named = pageOf(name);
    if (!named) {
      mount(main, noSuchPage(name));
      return;
    }
    if (moment.problem && !isCompared(asked)) throw moment.problem; // Compare names the failing moment itself
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
      clearTimeout(skeleton);
      main.setAttribute("aria-busy", "false");
      main.dataset.shown = address;
      stands = name;
    }
  }
}

/** Replace the rest of the previous page, unless the new page has rendered something already. */
function showSkeleton(left) {
  if (main.firstElementChild !== left) return;
  const isWithin = main.contains(document.activeElement);
  mount(main, SKELETON);
  if (isWithin) main.focus({ preventScroll: true });
}

/** Replace the page with an error. Rethrows anything that is not a Problem. */
function fail(problem, name) {
  const words = problemPage(problem, pageOf(name)?.about ?? "this page", [AGAIN]);
  bar.stop();
  page?.close?.();
  page = null;
  const again = standFor(words, stands === name);
  missed = problem.status ? null : again;
}

/** Report a module that failed to load as an unreachable gateway; errors inside a module stay as they are. */
function unreached(error) {
  throw error instanceof TypeError ? new Problem(0, null) : error;
}

/** The page for an unknown address, with links to all pages. */
const noSuchPage = name =>
  onlySays(
    html`No such page: <span class="m">${name}</span>`,
    "The console has these pages:",
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

/** Make `at` the moment of all pages. Concurrent calls for the same moment share one request. */
function seek(at) {
  if (at !== shownAt || moment.problem) {
    shownAt = at;
    found = find(at);
  }
  return found;
}

/** Resolve a moment to a revision and a time. An answer for an outdated moment is ignored. */
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

/** The time of a moment: the requested time, at most now; for a revision, the time of its event. */
function timeOf(at, eventTime) {
  const asked = askedMoment(at, Date.now()).ms ?? eventTime;
  return Math.max(eventTime, Math.min(asked, Date.now()));
}

/** Show the open page at another moment; replaces the address. */
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

// ---- live updates ----

async function news() {
  bar.news();
  badges.news();
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

/** Show that the gateway is unreachable, and since when. */
function silent(why) {
  says(why, false);
  moment.silent = { why, since: moment.silent?.since ?? Date.now() };
  root.classList.add("silent");
  bar.drawClock();
}

/** Show in red, in the status line and the time bar, why no pod can be placed; an empty `why` clears it. */
function freeze(why) {
  const words = why ? (FROZEN[why] ?? why) : location.host;
  says(words, !why);
  root.classList.toggle("frozen", Boolean(why));
  $("#link").title = why ? `Placement is stopped: ${words}. See Doctor.` : "";
}

/**
 * The gateway is reachable: retry a page that failed. A full reload also retries its module, which the
 * browser may have cached as failed.
 */
function answers(frozen) {
  freeze(frozen);
  if (!moment.silent) {
    if (missed) askLater(missed); // only one request failed
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

/** Update the page once for all pending news; news that arrives during the update starts another round. */
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
 * Call `changed(revision, frozen)` for each news and `failed(why)` while the gateway is unreachable. All tabs
 * share one worker; a browser without shared workers follows the ledger in each tab.
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

// ---- the error page: the reason, and a button to retry ----
//
// Invariant: a user who types in the page's search keeps the field and its text during the error and the
// retry, and no letter triggers a shortcut. Focus that was elsewhere on the page moves to the button.

const AGAIN = html`<button class="btn" id="again">Retry</button>`;

/** Whether the search field, of a page or of its error page, has the focus. */
const isTyping = () => document.activeElement.id === "q";

/** Show `words` instead of the page. Returns the function that retries, as the button does. */
function standFor(words, isShown) {
  const held = document.activeElement;
  const within = main === held ? Boolean($(".skeleton", main)) : main.contains(held);
  const typed = isShown && within && isTyping() ? held : null;
  mount(main, words);
  const again = () => askAgain(); // a new function each time, so that `missed` identifies this failure
  const button = $("#again");
  button?.addEventListener("click", again);
  if (typed) typeOn(typed, $(".answer", main));
  else if (within) (button ?? main).focus();
  return again;
}

/** Put a copy of the search field, without the page's listeners, after an element and focus it. */
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

/** Reload the page; keeps the focus and the text in the search field. */
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
    /* storage may be disabled */
  }
  redraw();
}

/** Draw the canvases again. */
function redraw() {
  bar.draw();
  page?.theme?.();
}

/** On a phone, the controls at the foot of the sidebar are in this dialog. */
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
      html`<a
        href="#/${path}"
        data-page="${path}"
        title="Press ${at + 1}"
        aria-keyshortcuts="${at + 1}"
        >${icon}<span>${title}</span><b class="badge" hidden></b
        ><kbd aria-hidden="true">${at + 1}</kbd></a
      >`,
  ),
);
const badges = new Badges();
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
  setTimeout(() => anchor.setAttribute("href", address)); // only for this click: the moment may change
});

/** Log in, then assign colours to the largest namespaces, so that all pages agree on them. */
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
document.fonts.ready.then(redraw); // what a canvas wrote before has another font
