import { OptionDefaults } from "typedoc";

/** @type {Partial<import("typedoc").TypeDocOptions>} */
export default {
  entryPoints: ["src/index.ts"],
  out: "docs",
  readme: "none",
  excludeInternal: true,
  excludePrivate: true,
  disableSources: true,
  // Each exported type resolves it, so that the pages show the fields.
  intentionallyNotExported: ["components"],
  treatWarningsAsErrors: true,
  // The generator of src/openapi.ts writes `@description`.
  blockTags: [...OptionDefaults.blockTags, "@description"],
};
