import { after, before, beforeEach } from "node:test";
import { Sandbox } from "../../src/index.js";
import { API_KEY, FakeServer } from "./server.js";

/** A server for the tests of one file, fresh scripts for each test, and options that lead to it. */
export function world(): { server: () => FakeServer; options: () => { apiKey: string; baseUrl: string } } {
  let server: FakeServer;
  for (const name of ["RINGFENCE_API_KEY", "RINGFENCE_URL"]) delete process.env[name];
  before(async () => {
    server = new FakeServer();
    await server.start();
  });
  beforeEach(() => {
    server.script = () => ({});
    server.intercept = () => false;
    server.seen.length = 0;
  });
  after(() => server.stop());
  return { server: () => server, options: () => ({ apiKey: API_KEY, baseUrl: server.url }) };
}

export function createSandbox(options: { apiKey: string; baseUrl: string }): Promise<Sandbox> {
  return Sandbox.create(options);
}

/** Waits until a condition holds, up to 5 s. */
export async function eventually(what: string, condition: () => boolean): Promise<void> {
  const end = Date.now() + 5000;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`not within 5 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
