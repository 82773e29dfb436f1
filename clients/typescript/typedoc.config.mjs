import { OptionDefaults } from "typedoc";

/** @type {Partial<import("typedoc").TypeDocOptions>} */
export default {
  entryPoints: ["src/index.ts"],
  out: "docs",
  readme: "none",
  excludeInternal: true,
  excludePrivate: true,
  disableSources: true,
  treatWarningsAsErrors: true,
  // The generator of src/openapi.ts writes `@description`.
  blockTags: [...OptionDefaults.blockTags, "@description"],
};
