/// <reference lib="esnext.disposable" preserve="true" />

/**
 * `Symbol.asyncDispose`, also where the runtime has none yet (Node before 20.5): it is defined there, since code
 * that was compiled from `await using` looks for it. One that somebody else defined before is used as it is.
 */
if (Symbol.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("Symbol.asyncDispose") });
}

export const asyncDispose: typeof Symbol.asyncDispose = Symbol.asyncDispose;
