// The table of pages: order, title and module. A new page is a row here and a module; navigation,
// shortcuts, palette, window title and tests read this table.
import { ICONS } from "./html.js";

/**
 * `path` is the address, and `load` imports the module. A page `under` another one has no row in the
 * navigation; the row of the other is marked. `about` names the content in the error of a gateway without it.
 */
export const PAGES = [
  {
    path: "fleet",
    title: "Fleet",
    icon: ICONS.fleet,
    about: "the fleet",
    load: () => import("./fleet/page.js"),
  },
  { path: "pods", title: "Pods", icon: ICONS.pods, load: () => import("./pages/pods.js") },
  { path: "pod", under: "pods", load: () => import("./pages/pod.js") },
  {
    path: "waiting",
    title: "Pending",
    icon: ICONS.waiting,
    about: "the queue",
    load: () => import("./pages/waiting.js"),
  },
  { path: "queues", under: "waiting", about: "queues", load: () => import("./pages/queues.js") },
  {
    path: "whatif",
    title: "What if",
    icon: ICONS.whatif,
    about: "what-if plans",
    load: () => import("./pages/whatif.js"),
  },
  {
    path: "events",
    title: "Events",
    icon: ICONS.events,
    about: "events",
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
    about: "health checks",
    load: () => import("./pages/doctor.js"),
  },
];

/** The pages of the navigation, in order. */
export const NAVIGATION = PAGES.filter(page => !page.under);

/** The page with this path, or undefined. */
export const pageOf = name => PAGES.find(page => page.path === name);
