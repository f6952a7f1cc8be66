// A plain JavaScript program that uses the installed package.
import * as sdk from "@ringfence/sdk";
import { AuthenticationError, Sandbox } from "@ringfence/sdk";

const sandbox = await Sandbox.create({ template: "code-interpreter" });
try {
  await sandbox.files.write("/home/user/a.txt", "from JavaScript");
  const result = await sandbox.commands.run("cat a.txt", { onStdout: (text) => process.stdout.write(text) });
  if (result.exitCode !== 0) throw new Error("exit code");
  if ((await sandbox.files.readText("/home/user/a.txt")) !== "from JavaScript") throw new Error("content");
} finally {
  await sandbox.kill();
}
const refused = await Sandbox.create({ apiKey: "rf_wrong" }).catch((error) => error);
if (!(refused instanceof AuthenticationError)) throw refused;
process.stdout.write(`\n${Object.keys(sdk).length} exports\n`);
