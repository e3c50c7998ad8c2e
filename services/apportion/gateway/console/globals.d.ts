// What the checker of types cannot see in the console's modules: what the gateway makes, and that all
// events come from elements.

declare module "*/vocabulary.js" {
  export const PHASES: Record<string, string>;
  export const OUTCOMES: Record<string, string>;
  export const POLICIES: string[];
  export const STORY: Record<string, string>;
}

interface EventTarget {
  closest(selectors: string): any;
  blur(): void;
  value: any;
}
