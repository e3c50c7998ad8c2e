// Who looks: where the gateway has a login, a token is asked for before anything else is.
//
// The token goes into a cookie that no script can read, this one neither. Invariant: nothing of the
// pages is asked before the gateway knows who asks.
import { getNow, Problem, send } from "./api.js";
import { $, html, mount } from "./html.js";
import { problemPage } from "./parts.js";

export const me = { login: false, name: "", all: true, doctor: true, cordons: false };
const UNKNOWN = 401;

/** Return once the gateway knows who asks, or wants to know nothing. */
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
        mount(main, problemPage(problem, "who you are"));
        await new Promise(resolve => {
          setTimeout(resolve, 1000);
        });
      }
    }
  }
}

/** Show the form until a token of it is somebody's. */
function asked(main) {
  document.title = "Log in · Apportion";
  document.body.classList.add("locked");
  mount(
    main,
    html`<div class="page login">
      <header class="answer">
        <h1>Who are you?</h1>
        <p class="sub"><span>This gateway answers whom it knows, by a token.</span></p>
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
        <p class="faint">The browser keeps it until it is closed. In a cluster:</p>
        <pre>kubectl create token NAME --audience apportion</pre>
        <p class="faint">
          Elsewhere whoever runs the gateway makes one: <code>apportion token NAME</code>
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
    }); // the browser says that it is empty
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

/** Nobody leaves by a slip: it takes the token to come back. */
function leave() {
  const dialog = $("#dialog");
  dialog.setAttribute("aria-label", "Log out");
  mount(
    dialog,
    html`<h2>Log out ${me.name}?</h2>
      <p class="faint">This browser forgets the token; it is asked for again.</p>
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
