import { Sandbox } from "@ringfence/sdk"

const sandbox = await Sandbox.create({
  name: "code-interpreter",
  fromTemplate: "superserve/code-interpreter",
  network: { denyOut: ["0.0.0.0/0"] },
})

const code = `
import pandas as pd
df = pd.DataFrame({"x": [1, 2, 3, 4], "y": [2, 4, 6, 8]})
print(df.describe())
` // the model's code

await sandbox.files.write("/home/user/cell.py", code)
const result = await sandbox.commands.run("python cell.py", { timeoutMs: 60_000 })
console.log(result.exitCode, result.stdout, result.stderr)

const runPythonTool = {
  name: "run_python",
  description: "Run Python code in a sandbox. Returns the exit code, stdout, and stderr.",
  input_schema: {
    type: "object",
    properties: { code: { type: "string" } },
    required: ["code"],
  },
}

async function runPython(code: string) {
  await sandbox.files.write("/home/user/cell.py", code)
  const r = await sandbox.commands.run("python cell.py", { timeoutMs: 60_000 })
  return {
    exit_code: r.exitCode,
    stdout: r.stdout.slice(-10_000), // keep the model's context small
    stderr: r.stderr.slice(-10_000),
  }
}

import { writeFile } from "node:fs/promises"

await sandbox.files.write(
  "/home/user/sales.csv",
  "month,revenue\nJan,120\nFeb,150\nMar,90\nApr,180\n",
)

await sandbox.files.write(
  "/home/user/cell.py",
  `
import pandas as pd
import matplotlib.pyplot as plt

df = pd.read_csv("sales.csv")
df.plot(x="month", y="revenue", kind="bar", legend=False)
plt.ylabel("Revenue")
plt.savefig("chart.png", dpi=150)
print(df["revenue"].sum())
`,
)
const run = await sandbox.commands.run("python cell.py", { timeoutMs: 60_000 })
console.log(run.stdout) // 540

const png = await sandbox.files.read("/home/user/chart.png")
await writeFile("chart.png", png)

await sandbox.kill()
