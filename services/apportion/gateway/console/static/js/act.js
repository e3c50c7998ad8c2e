// Actions: cordon and uncordon a device or a node, in the name of the logged-in user.
//
// Invariant: each button and its dialog name their target. A user who may not act has no buttons, but sees
// the reason and the equivalent command.
import { path, Problem, send } from "./api.js";
import { $, html, mount } from "./html.js";
import { me } from "./login.js";
import { isLive } from "./moment.js";
import { command } from "./parts.js";
import { sentence } from "./typography.js";

const PLAIN = /^[\w@.:/+-]+$/; // needs no quotes in a shell
const quoted = text => (PLAIN.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const REASON = '--reason "…"';

/** A device as the target of an action. */
export const cardTarget = device => ({
  kind: "devices",
  name: device.device,
  words: `device ${device.index}`,
  whole: `device ${device.index} on ${device.node}`,
  cordons: device.cordons,
});

/** A node with all its devices as the target of an action. */
export const nodeTarget = node => ({
  kind: "nodes",
  name: node.node,
  words: node.node,
  whole: `${node.node} and all its devices`,
  cordons: node.cordons,
});

/** A cordon or uncordon button for each target; none for users who may not act. */
export const cordonButtons = targets =>
  (whyOff() ? [] : targets).map(target => {
    const own = isOwn(target);
    const words = own ? `Uncordon ${target.words}…` : `Cordon ${target.words}…`;
    return html`<button
      class="btn"
      id="act-${target.kind}"
      data-act="${own ? "uncordon" : "cordon"}"
      data-kind="${target.kind}"
      data-name="${target.name}"
      data-whole="${target.whole}"
    >
      ${words}
    </button>`;
  });

const isOwn = ({ cordons }) => me.login && cordons.some(cordon => cordon.by === me.name);

function whyOff() {
  if (!isLive()) return "You are viewing the past. Go back to now to cordon.";
  if (me.cordons) return "";
  return me.login ? `${me.name} is not allowed to cordon.` : "Log in to cordon.";
}

/** Why the buttons are disabled, and the actions that only commands offer. */
export function actNotes(targets) {
  const off = whyOff();
  if (!isLive()) return html`<p class="faint" id="why-off">${off}</p>`;
  const node = targets.at(-1);
  const rows = targets.flatMap(target =>
    target.cordons
      .filter(cordon => !me.cordons || cordon.by !== me.name)
      .map(cordon => [
        `Remove the cordon by ${cordon.by}`,
        `apportion uncordon ${quoted(target.name)} --of ${quoted(cordon.by)}`,
      ]),
  );
  if (off)
    rows.push(
      ...targets.map(target => [
        `Cordon ${target.words}`,
        `apportion cordon ${quoted(target.name)} ${REASON}`,
      ]),
    );
  rows.push([`Drain ${node.name}`, `apportion drain ${quoted(node.name)} ${REASON}`]);
  return html`${off ? html`<p class="faint" id="why-off">${off}</p>` : ""}
    <dl class="cmds">
      ${rows.map(
        ([words, said]) =>
          html`<dt>${words}</dt>
            <dd>${command(said)}</dd>`,
      )}
    </dl>`;
}

/** Handle the action buttons of all pages. */
export function openActs() {
  document.addEventListener("click", event => {
    const button = event.target.closest("[data-act]");
    if (button) ask(button.dataset, button.id);
  });
}

/** Open the dialog of an action. When it closes, its button gets the focus again, even after a redraw. */
function ask({ act, kind, name, whole }, button) {
  const dialog = $("#dialog");
  const cordon = act === "cordon";
  const title = cordon ? `Cordon ${whole}` : `Uncordon ${whole}`;
  dialog.setAttribute("aria-label", title);
  mount(
    dialog,
    html`<form id="act" novalidate>
      <h2>${title}</h2>
      <p class="faint">
        ${
          cordon
            ? `No new pods are placed on this ${kind === "nodes" ? "node" : "device"}; running pods stay.`
            : "Removes your cordon; other people's stay."
        }
        Recorded as ${me.name}.
      </p>
      <label for="reason">${cordon ? "Reason" : "Reason (optional)"}</label>
      <div class="row">
        <input id="reason" maxlength="1024" autocomplete="off" aria-describedby="refused" />
      </div>
      <p id="refused" role="alert" class="c-bad"></p>
      <div class="acts">
        <button class="btn pri">${cordon ? "Cordon" : "Uncordon"}</button
        ><button class="btn" type="button" id="cancel">Cancel</button>
      </div>
    </form>`,
  );
  dialog.showModal();
  dialog.addEventListener("close", () => $(`#${button}`)?.focus(), { once: true });
  $("#reason").focus();
  $("#cancel").addEventListener("click", () => dialog.close());
  const form = $("#act");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const reason = $("#reason").value.trim();
    if (cordon && !reason) {
      refuse("Enter a reason; others will see it.");
      return;
    }
    try {
      await send(`${kind}/${path(name)}/${act}`, { reason });
      if (form.isConnected) dialog.close(); // another dialog may be open by now
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (form.isConnected) refuse(sentence(problem.message));
    }
  });
}

function refuse(words) {
  $("#refused").textContent = words;
  $("#reason").setAttribute("aria-invalid", "true");
  $("#reason").focus();
}
