import "dotenv/config";
import { Sandbox } from "@ringfence/sdk";

const SNIPPETS = [
  `from sympy import symbols, solve
x, y = symbols('x y')
eqs = [x + 2*y - 5, 3*x - y - 4]
print("solution:", solve(eqs, [x, y]))
`,
  `import io, pandas as pd
csv = "region,sales\\nNA,120\\nEU,80\\nAPAC,150\\nNA,60"
df = pd.read_csv(io.StringIO(csv))
print(df.groupby('region')['sales'].sum().to_dict())
`,
  `import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.figure()
plt.plot([0, 1, 2, 3], [1, 4, 2, 8], marker='o')
plt.title("agent-generated chart")
plt.savefig("/tmp/chart.png", dpi=120)
print("wrote /tmp/chart.png")
`,
];

async function runSnippet(sbx: Sandbox, idx: number, code: string) {
  const path = `/tmp/snip_${idx}.py`;
  await sbx.files.write(path, code);
  const r = await sbx.commands.run(`python3 ${path}`, { timeout: 30 });
  console.log(`--- snippet ${idx} (exit=${r.exitCode}) ---`);
  if (r.stdout) console.log(r.stdout.trimEnd());
  if (r.stderr && r.exitCode !== 0) console.log("stderr:", r.stderr.trimEnd());
}

async function main(): Promise<void> {
  const sbx = await Sandbox.create({ template: "code-interpreter", timeout: 180 });
  try {
    for (let i = 0; i < SNIPPETS.length; i++) {
      await runSnippet(sbx, i + 1, SNIPPETS[i]);
    }
    const info = await sbx.files.getInfo("/tmp/chart.png");
    console.log(`\nchart.png exists: ${info.size} bytes`);
  } finally {
    await sbx.kill();
  }
}

main().catch(console.error);
