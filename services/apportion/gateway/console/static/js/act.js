// What acts: a card or a node off offer, and on again, each in the name of who logged in.
//
// Invariant: a button names what it acts on, and so does the dialog that it opens; who may not act
// here is told why beside the button, with the command that does it.
import { path, Problem, send } from "./api.js";
import { $, html, mount } from "./html.js";
import { me } from "./login.js";
import { isLive } from "./moment.js";
import { command } from "./parts.js";
import { sentence } from "./typography.js";

const PLAIN = /^[\w@.:/+-]+$/; // to a shell
const quoted = text => (PLAIN.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const REASON = '--reason "…"';

/** A card to act on. */
export const cardTarget = device => ({
  kind: "devices",
  name: device.device,
  words: `card ${device.index}`,
  whole: `card ${device.index} of ${device.node}`,
  cordons: device.cordons,
});

/** A node to act on, with all of its cards. */
export const nodeTarget = node => ({
  kind: "nodes",
  name: node.node,
  words: node.node,
  whole: `${node.node}, all of its cards`,
  cordons: node.cordons,
});

/** A button for each target: to cordon it, or to lift one's own reason; off for who may not. */
export const cordonButtons = targets =>
  targets.map(target => {
    const own = isOwn(target);
    const words = own ? `Lift my cordon of ${target.words}` : `Cordon ${target.words}…`;
    if (whyOff())
      return html`<button class="btn" id="act-${target.kind}" disabled aria-describedby="why-off">
        ${words}
      </button>`;
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
  if (!isLive()) return "Acts are for now: the pages show the past.";
  if (me.cordons) return "";
  return me.login ? `${me.name} may not cordon.` : "To cordon here needs a login.";
}

/** Why buttons are off, and what only commands do: of the first target, the one that is looked at, and its node. */
export function actNotes(targets) {
  const off = whyOff();
  if (!isLive()) return html`<p class="faint" id="why-off">${off}</p>`;
  const node = targets.at(-1);
  const rows = targets.flatMap(target =>
    target.cordons
      .filter(cordon => !me.cordons || cordon.by !== me.name)
      .map(cordon => [
        `To lift the cordon of ${cordon.by}`,
        `apportion uncordon ${quoted(target.name)} --of ${quoted(cordon.by)}`,
      ]),
  );
  if (off)
    rows.push(
      ...targets.map(target => [
        `To cordon ${target.words}`,
        `apportion cordon ${quoted(target.name)} ${REASON}`,
      ]),
    );
  rows.push([
    `To move what runs on ${node.name} as well`,
    `apportion drain ${quoted(node.name)} ${REASON}`,
  ]);
  return html`${off ? html`<p class="faint" id="why-off">${off}</p>` : ""}
    <dl class="cmds">
      ${rows.map(
        ([words, said]) =>
          html`<dt>${words}</dt>
            <dd>${command(said)}</dd>`,
      )}
    </dl>`;
}

/** Have the buttons of all pages act. */
export function openActs() {
  document.addEventListener("click", event => {
    const button = event.target.closest("[data-act]");
    if (button) ask(button.dataset, button.id);
  });
}

/** The keyboard is on the button again afterwards, though what it stands in was drawn anew meanwhile. */
function ask({ act, kind, name, whole }, button) {
  const dialog = $("#dialog");
  const cordon = act === "cordon";
  const title = cordon ? `Cordon ${whole}` : `Lift your cordon of ${whole}`;
  dialog.setAttribute("aria-label", title);
  mount(
    dialog,
    html`<form id="act" novalidate>
      <h2>${title}</h2>
      <p class="faint">
        ${
          cordon
            ? `Nothing new goes ${kind === "nodes" ? "there" : "onto it"}; what runs there stays.`
            : "Reasons of others stand until they are lifted too."
        }
        In the name of ${me.name}.
      </p>
      <label for="reason">${cordon ? "Reason" : "Reason, if you like"}</label>
      <div class="row">
        <input id="reason" maxlength="1024" autocomplete="off" aria-describedby="refused" />
      </div>
      <p id="refused" role="alert" class="c-bad"></p>
      <div class="acts">
        <button class="btn pri">${cordon ? "Cordon" : "Lift"}</button
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
    // before its answer comes another dialog may stand there
    event.preventDefault();
    const reason = $("#reason").value.trim();
    if (cordon && !reason) {
      refuse("Say why: whoever asks later will ask.");
      return;
    }
    try {
      await send(`${kind}/${path(name)}/${act}`, { reason });
      if (form.isConnected) dialog.close();
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
