// Builds with tsc into an empty directory, so that no file of an older build is packed or tested.
// Usage: node scripts/build.mjs [tsconfig.json]
import { spawnSync } from "node:child_process";
import { rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const config = process.argv[2] ?? "tsconfig.json";
rmSync(`${root}${config === "tsconfig.json" ? "dist" : "build"}`, { recursive: true, force: true });

const tsc = `${root}node_modules/typescript/bin/tsc`;
const done = spawnSync(process.execPath, [tsc, "-p", config], { cwd: root, stdio: "inherit" });
process.exit(done.status ?? 1);
