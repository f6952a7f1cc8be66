// Runs when the package is installed from a checkout (`npm install ./sdk/typescript`), packed or developed.
// npm links a directory without installing what it needs to build, so that is done here, from the lock file.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));

function run(command, args, env = process.env) {
  // The output of a build is no part of what `npm pack --json` and the like print on stdout.
  const done = spawnSync(command, args, { cwd: root, env, stdio: ["ignore", 2, 2] });
  if (done.error) throw done.error;
  if (done.status !== 0) process.exit(done.status ?? 1);
}

// npm writes this file last, so an installation that was interrupted has none.
if (!existsSync(`${root}node_modules/.package-lock.json`)) {
  // Settings of the outer npm that are about its own install (where, what to leave out) must not reach this one.
  const outer =
    /^(npm_config_(global|location|prefix|local_prefix|omit|include|only|production|dry_run|package_lock.*|workspace.*|install_links|save.*)|NODE_ENV|INIT_CWD)$/i;
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !outer.test(name)));
  const npm = process.env.npm_execpath;
  const args = ["ci", "--ignore-scripts", "--include=dev", "--no-audit", "--no-fund"];
  if (npm?.endsWith(".js")) run(process.execPath, [npm, ...args], env);
  else run("npm", args, env);
}
run(process.execPath, ["scripts/build.mjs"]);
