// Generates src/openapi.ts from the OpenAPI document of a server.
//
//   TENURE_BINARY=path/to/tenure npm run generate            writes the file
//   TENURE_BINARY=path/to/tenure npm run generate -- --check  fails if the file differs
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";
import ts from "typescript";
import { startNode } from "./node.mjs";

const TARGET = fileURLToPath(new URL("../src/openapi.ts", import.meta.url));
const HEADER = `// Generated from the server's OpenAPI document by scripts/generate.mjs. Do not edit: run \`npm run generate\`.
`;

const binary = process.env.TENURE_BINARY;
if (binary === undefined) {
  throw new Error("TENURE_BINARY is not set: expected the path of the server's binary");
}
const node = await startNode(binary);
let document;
try {
  document = await (await fetch(`${node.url}/openapi.json`)).json();
} finally {
  await node.stop();
}

// The client uses the types of the bodies only. The paths would triple the size of the file.
document.paths = {};

// A later server can send words that this document does not list, so each enumeration also accepts other strings.
const open = ts.factory.createIntersectionTypeNode([
  ts.factory.createKeywordTypeNode(ts.SyntaxKind.StringKeyword),
  ts.factory.createTypeLiteralNode([]),
]);
const generated = await openapiTS(document, {
  transform(schema, { path }) {
    const isNamed = /^#\/components\/schemas\/[^/]+$/.test(path ?? "");
    if (!isNamed || schema.type !== "string" || schema.enum === undefined) {
      return undefined;
    }
    const words = schema.enum.map((word) => ts.factory.createLiteralTypeNode(ts.factory.createStringLiteral(word)));
    return ts.factory.createUnionTypeNode([...words, open]);
  },
});
const text = HEADER + astToString(generated);
if (process.argv.includes("--check")) {
  if ((await readFile(TARGET, "utf8")) !== text) {
    console.error("src/openapi.ts differs from the OpenAPI document of the server: run `npm run generate`");
    process.exitCode = 1;
  }
} else {
  await writeFile(TARGET, text);
}
