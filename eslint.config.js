// What eslint looks at in the console's modules. Names that are not there are the checker of types'
// business, and how a line looks is prettier's. A template's choices and every `?.` count as branches, so
// a function may have more of them than in Python, and more lines.
import js from "@eslint/js";

export default [
  { files: ["services/apportion/gateway/console/static/js/**/*.js"] },
  {
    ...js.configs.recommended,
    files: ["services/apportion/gateway/console/static/js/**/*.js"],
    rules: {
      ...js.configs.recommended.rules,
      "no-undef": "off",
      complexity: ["error", 21],
      "consistent-return": "error",
      eqeqeq: "error",
      "max-lines": ["error", 800],
      "max-lines-per-function": ["error", { max: 75, skipComments: true }],
      "no-implicit-coercion": "error",
      "no-shadow": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
    },
  },
];
