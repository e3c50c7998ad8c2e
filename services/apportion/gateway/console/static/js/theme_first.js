// Sets the theme and the size of the time bar before the first paint: the user's choices, else the preference
// of the system. The only script that is not a module.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
    document.documentElement.classList.toggle("folded", localStorage.getItem("folded") === "yes");
  } catch {
    /* storage may be disabled */
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
})();
