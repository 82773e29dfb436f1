/// <reference lib="esnext.disposable" preserve="true" />

// Node.js before 20.5 lacks the symbol, and the code that TypeScript emits for `await using` needs it. This module is
// the first import of the package, so that the classes below define their methods with the same symbol.
if (Symbol.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol("Symbol.asyncDispose") });
}

export {};
