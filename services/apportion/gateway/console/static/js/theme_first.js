// The theme before the first paint, so that no page flashes: what was chosen here, else what the
// system prefers. The only script that is no module.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    /* storage may be off */
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
})();
