// A strict TypeScript program that uses the installed package and its types.
import {
  CommandExitError,
  type CommandResult,
  type FileInfo,
  type RunOptions,
  Sandbox,
  type SandboxInfo,
} from "@ringfence/sdk";

const options: RunOptions = {
  timeoutMs: 5000,
  onStdout: (text: string, bytes: Uint8Array) => void [text, bytes],
};

async function use(): Promise<string> {
  await using sandbox: Sandbox = await Sandbox.create({ timeout: 60, network: { denyOut: ["0.0.0.0/0"] } });
  const written: FileInfo = await sandbox.files.write("/home/user/a.txt", "from TypeScript");
  const bytes: Uint8Array<ArrayBuffer> = await sandbox.files.read(written.path);
  const text = await new Blob([bytes]).text();
  const result: CommandResult = await sandbox.commands.run(["true"], options);
  if (result.reason === "oom") throw new Error("oom");
  try {
    result.check();
  } catch (error) {
    if (error instanceof CommandExitError)
      console.log(error.exitCode, error.hint?.length, error.requestId?.length);
  }
  for await (const info of Sandbox.list({ state: "running" })) {
    const found: SandboxInfo = info;
    if (found.id === sandbox.id) return text;
  }
  return "not listed";
}

// Mistakes that the types find.
// @ts-expect-error: the option is timeout, timeoutSeconds or timeoutMs
const unknown: RunOptions = { timeoutSecs: 3 };
// @ts-expect-error: seconds are a number
const wrong: RunOptions = { timeout: "3" };
void [unknown, wrong];

console.log(await use());
