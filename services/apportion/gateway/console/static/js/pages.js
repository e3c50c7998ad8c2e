// The pages: their order, what they are called, and the module of each. A new page is a row here and
// its module; navigation, keys, palette, title and tests read this table.
import { ICONS } from "./html.js";

/**
 * `path` is the address, `load` brings the module. A page `under` another one has no row in the
 * navigation, which marks the other. `about` names the page's question where it has no answer.
 */
export const PAGES = [
  {
    path: "fleet",
    title: "Fleet",
    icon: ICONS.fleet,
    load: () => import("./fleet/page.js"),
  },
  { path: "pods", title: "Pods", icon: ICONS.pods, load: () => import("./pages/pods.js") },
  { path: "pod", under: "pods", load: () => import("./pages/pod.js") },
  {
    path: "waiting",
    title: "Waiting",
    icon: ICONS.waiting,
    about: "who waits",
    load: () => import("./pages/waiting.js"),
  },
  {
    path: "whatif",
    title: "What if",
    icon: ICONS.whatif,
    about: "what if",
    load: () => import("./pages/whatif.js"),
  },
  {
    path: "events",
    title: "Events",
    icon: ICONS.events,
    about: "what happened",
    load: () => import("./pages/events.js"),
  },
  {
    path: "reports",
    title: "Reports",
    icon: ICONS.reports,
    about: "reports",
    load: () => import("./pages/reports.js"),
  },
  {
    path: "doctor",
    title: "Doctor",
    icon: ICONS.doctor,
    about: "for its health",
    load: () => import("./pages/doctor.js"),
  },
];

/** The pages of the navigation, in their order. */
export const NAVIGATION = PAGES.filter(page => !page.under);

/** The page of that address, or undefined. */
export const pageOf = name => PAGES.find(page => page.path === name);
