/** Reads option objects: what is unknown, said twice or of the wrong type is refused before anything is sent. */

type Options = Readonly<Record<string, unknown>>;

/** Whether the value's own properties are what it holds: a Map, a Date or Headers would be taken for empty. */
function isRecord(value: unknown): value is Record<string, unknown> {
  return Object.prototype.toString.call(value) === "[object Object]";
}

/** Returns the options as a record, after refusing names that are not in known. */
export function checkOptions(where: string, options: unknown, known: readonly string[]): Options {
  if (options === undefined) return {};
  if (!isRecord(options)) {
    throw new TypeError(`${where}: options must be an object`);
  }
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) {
      throw new TypeError(`${where}: unknown option '${name}'; known are ${[...known].sort().join(", ")}`);
    }
  }
  return options;
}

/** Returns the one that is given of several spellings of one option. */
export function either(where: string, options: Options, names: readonly string[]): unknown {
  const given = names.filter((name) => options[name] !== undefined);
  if (given.length > 1) {
    throw new TypeError(
      `${where}: ${given.map((n) => `'${n}'`).join(" and ")} are one option; pass one of them`,
    );
  }
  return given[0] === undefined ? undefined : options[given[0]];
}

/**
 * Returns a duration in seconds out of `base` (seconds), `baseSeconds` and `baseMs`: a number, null for
 * "none" and undefined when it is not given. The server decides about the range. Numbers that JSON cannot carry
 * are refused here, since they would arrive as null, which means no limit at all.
 */
export function seconds(where: string, options: Options, base: string): number | null | undefined {
  const names = [base, `${base}Seconds`, `${base}Ms`];
  const value = either(where, options, names);
  if (value === undefined || value === null) return value;
  if (typeof value !== "number" || !Number.isFinite(value)) {
    throw new TypeError(
      `${where}: '${names.find((n) => options[n] !== undefined)}' must be a finite number or null`,
    );
  }
  return options[`${base}Ms`] === undefined ? value : value / 1000;
}

/** Returns an option that must be a string. */
export function optionalString(where: string, options: Options, name: string): string | undefined {
  const value = options[name];
  if (value === undefined || typeof value === "string") return value;
  throw new TypeError(`${where}: '${name}' must be a string`);
}

/**
 * Returns an option that must be an integer. Its range is the server's business, unless a minimum is given: then
 * nothing less can be put into a request at all.
 */
export function optionalInteger(
  where: string,
  options: Options,
  name: string,
  min?: number,
): number | undefined {
  const value = options[name];
  if (value === undefined) return value;
  if (!Number.isSafeInteger(value) || (min !== undefined && (value as number) < min)) {
    throw new TypeError(
      `${where}: '${name}' must be an integer${min === undefined ? "" : ` of at least ${min}`}`,
    );
  }
  return value as number;
}

/** Returns an option that must be a boolean. */
export function optionalBoolean(where: string, options: Options, name: string): boolean | undefined {
  const value = options[name];
  if (value === undefined || typeof value === "boolean") return value;
  throw new TypeError(`${where}: '${name}' must be true or false`);
}

/** Returns an option that must be a list of strings. */
export function optionalStrings(where: string, options: Options, name: string): string[] | undefined {
  const value = options[name];
  if (value === undefined) return value;
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value;
  throw new TypeError(`${where}: '${name}' must be a list of strings`);
}

/** Returns a value, if it is given, that must be an object with string values. */
export function optionalStringMap(
  where: string,
  name: string,
  value: unknown,
): Record<string, string> | undefined {
  if (value === undefined) return value;
  if (!isRecord(value)) {
    throw new TypeError(`${where}: '${name}' must be an object with string values`);
  }
  for (const [key, item] of Object.entries(value)) {
    if (typeof item !== "string") throw new TypeError(`${where}: '${name}.${key}' must be a string`);
  }
  return value as Record<string, string>;
}

/** Returns an option that must be a function. */
export function optionalFunction<T>(where: string, options: Options, name: string): T | undefined {
  const value = options[name];
  if (value === undefined || typeof value === "function") return value as T | undefined;
  throw new TypeError(`${where}: '${name}' must be a function`);
}

/** Returns the `signal` option. */
export function optionalSignal(where: string, options: Options): AbortSignal | undefined {
  const value = options["signal"];
  if (value === undefined || value instanceof AbortSignal) return value;
  throw new TypeError(`${where}: 'signal' must be an AbortSignal`);
}
