/** What differs between runtimes and needs no import: environment variables and the runtime's name. */

interface ProcessLike {
  env?: Record<string, string | undefined>;
  versions?: Record<string, string | undefined>;
}

function processLike(): ProcessLike | undefined {
  return (globalThis as { process?: ProcessLike }).process;
}

/** Returns an environment variable without the white space around it; undefined when it is unset or blank. */
export function environment(name: string): string | undefined {
  let value: string | undefined;
  try {
    value = processLike()?.env?.[name]?.trim();
  } catch {
    // A runtime that asks for permission first, and did not get it.
  }
  return value === "" ? undefined : value;
}

/** Names the runtime for the User-Agent header. */
export function runtime(): string {
  const node = processLike()?.versions?.["node"];
  return node === undefined ? "web" : `node/${node}`;
}
