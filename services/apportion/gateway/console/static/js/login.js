// Login: if the gateway has one, the console asks for a token before anything else.
//
// The gateway keeps the token in a cookie that no script can read. Invariant: no page sends a request
// before the login is complete.
import { getNow, Problem, send } from "./api.js";
import { $, html, mount } from "./html.js";
import { problemPage } from "./parts.js";

export const me = { login: false, name: "", all: true, doctor: true, cordons: false };
const UNKNOWN = 401;

/** Return after a login, or at once if the gateway has none. */
export async function known(main) {
  for (;;) {
    try {
      Object.assign(me, await getNow("me"));
      return showMe();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.unknown) return undefined;
      if (problem.status === UNKNOWN) {
        await asked(main);
      } else {
        mount(main, problemPage(problem, "logins"));
        await new Promise(resolve => {
          setTimeout(resolve, 1000);
        });
      }
    }
  }
}

/** Show the form until the gateway accepts a token. */
function asked(main) {
  document.title = "Log in · Apportion";
  document.body.classList.add("locked");
  mount(
    main,
    html`<div class="page login">
      <header class="answer">
        <h1>Log in</h1>
        <p class="sub"><span>This gateway requires a token.</span></p>
      </header>
      <section class="card">
        <form id="login">
          <label for="token">Token</label>
          <div class="row">
            <input
              id="token"
              type="password"
              required
              autocomplete="current-password"
              spellcheck="false"
              aria-describedby="refused"
            /><button class="btn pri">Log in</button>
          </div>
          <p id="refused" role="alert" class="c-bad"></p>
        </form>
        <p class="faint">
          The browser keeps the token until you close it. In a cluster, create one with:
        </p>
        <pre>kubectl create token NAME --audience apportion</pre>
        <p class="faint">
          Without Kubernetes, ask the operator of the gateway to run
          <code>apportion token NAME</code>.
        </p>
      </section>
    </div>`,
  );
  main.setAttribute("aria-busy", "false");
  main.dataset.shown = "login";
  $("#token").focus();
  return new Promise(resolve => {
    $("#token").addEventListener("invalid", () => {
      $("#refused").textContent = "";
    }); // the browser itself reports an empty field
    $("#login").addEventListener("submit", async event => {
      event.preventDefault();
      try {
        await send("login", { token: $("#token").value });
        document.body.classList.remove("locked");
        resolve();
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        $("#refused").textContent = `${problem.message}.`;
        $("#token").select();
      }
    });
  });
}

function showMe() {
  if (!me.login) return;
  const button = $("#me");
  button.hidden = false;
  mount(button, html`<span>${me.name.split(":").pop()}</span><em>Log out…</em>`);
  button.title = `${me.name}: log out`;
  button.setAttribute("aria-label", `${me.name}: Log out…`);
  button.addEventListener("click", leave);
}

/** Ask for confirmation, because logging in again needs the token. */
function leave() {
  const dialog = $("#dialog");
  dialog.setAttribute("aria-label", "Log out");
  mount(
    dialog,
    html`<h2>Log out ${me.name}?</h2>
      <p class="faint">This browser forgets the token. You need it to log in again.</p>
      <div class="acts">
        <button class="btn pri" id="logout">Log out</button
        ><button class="btn" id="stay">Cancel</button>
      </div>`,
  );
  dialog.showModal();
  $("#stay").addEventListener("click", () => dialog.close());
  $("#logout").addEventListener("click", async () => {
    await send("logout", {});
    location.reload();
  });
}
