// What acts: a node off offer, and on again, each in the name of who logged in.
import { path, Problem, send } from "./api.js";
import { $, html, mount } from "./html.js";
import { me } from "./login.js";
import { isLive } from "./moment.js";

/** The button of a node: to cordon it, or to lift one's own reason; off for who may not. */
export function cordonButton(node) {
  const own = me.login && node.cordons.some(cordon => cordon.by === me.name);
  const words = own ? "Lift my cordon" : "Cordon…";
  if (!me.cordons || !isLive()) {
    const why = !isLive() ? "Only now" : me.login ? `${me.name} may not cordon` : "Needs a login";
    return html`<button class="btn" disabled title="${why}; on the command line: apportion cordon ${node.node}">${words}</button>`;
  }
  return html`<button class="btn" data-act="${own ? "uncordon" : "cordon"}" data-node="${node.node}">${words}</button>`;
}

/** Have the buttons of all pages act. */
export function openActs() {
  document.addEventListener("click", event => {
    const button = event.target.closest("[data-act]");
    if (button) ask(button.dataset.act, button.dataset.node);
  });
}

function ask(act, node) {
  const dialog = $("#dialog");
  const cordon = act === "cordon";
  const title = cordon ? `Cordon ${node}` : `Lift your cordon of ${node}`;
  dialog.setAttribute("aria-label", title);
  mount(dialog, html`<form id="act"><h2>${title}</h2><p class="faint">${cordon
    ? "Nothing new goes there; what runs there stays."
    : "Reasons of others stand until they are lifted too."} In the name of ${me.name}.</p>
    <label for="reason">${cordon ? "Why" : "Why, if you like"}</label><div class="row"><input id="reason" maxlength="1024" autocomplete="off" ${cordon ? html`required` : ""}><button class="btn pri">${cordon ? "Cordon" : "Lift"}</button></div><p id="refused" role="alert" class="c-bad"></p></form>`);
  dialog.showModal();
  $("#reason").focus();
  $("#act").addEventListener("submit", async event => {
    event.preventDefault();
    try {
      await send(`nodes/${path(node)}/${act}`, { reason: $("#reason").value });
      dialog.close();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      $("#refused").textContent = `${problem.message}.`;
    }
  });
}
