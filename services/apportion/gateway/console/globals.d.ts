// Types that tsc cannot infer for the console's modules: the generated vocabulary module, and event targets,
// which are always elements.

declare module "*/vocabulary.js" {
  export const PHASES: Record<string, string>;
  export const OUTCOMES: Record<string, string>;
  export const POLICIES: string[];
  export const STORY: Record<string, string>;
  export const CORE_UNITS: Record<string, string>;
  export const NPU_UNIT: string;
  export const START_UNKNOWN: Record<string, string>;
  export const START_JUDGED_LEAST: number;
}

interface EventTarget {
  closest(selectors: string): any;
  blur(): void;
  value: any;
}
