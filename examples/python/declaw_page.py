import textwrap

from ringfence import Sandbox


# Three snippets the "agent" wants to run. In a real pipeline these
# come from the model's tool-use response; we hard-code them here so
# the example has no LLM dependency.
SNIPPETS = [
    # 1. Numeric: SymPy solves a small system.
    textwrap.dedent("""
        from sympy import symbols, solve
        x, y = symbols('x y')
        eqs = [x + 2*y - 5, 3*x - y - 4]
        print("solution:", solve(eqs, [x, y]))
    """),

    # 2. Data shaping: pandas rollup from an in-memory CSV string.
    textwrap.dedent("""
        import io, pandas as pd
        csv = "region,sales\\nNA,120\\nEU,80\\nAPAC,150\\nNA,60"
        df = pd.read_csv(io.StringIO(csv))
        print(df.groupby('region')['sales'].sum().to_dict())
    """),

    # 3. Rendering: matplotlib — renders to a file, no display needed.
    textwrap.dedent("""
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        plt.figure()
        plt.plot([0, 1, 2, 3], [1, 4, 2, 8], marker='o')
        plt.title("agent-generated chart")
        plt.savefig("/tmp/chart.png", dpi=120)
        print("wrote /tmp/chart.png")
    """),
]


def run_snippet(sbx: Sandbox, idx: int, code: str) -> None:
    # Every snippet is written to its own file so tracebacks point
    # at a real path, then executed with python3.
    path = f"/tmp/snip_{idx}.py"
    sbx.files.write(path, code)
    r = sbx.commands.run(f"python3 {path}", timeout=30)
    print(f"--- snippet {idx} (exit={r.exit_code}) ---")
    if r.stdout:
        print(r.stdout.rstrip())
    if r.stderr and r.exit_code != 0:
        print("stderr:", r.stderr.rstrip())


def main() -> None:
    sbx = Sandbox.create(template="code-interpreter", timeout=180)
    try:
        for i, code in enumerate(SNIPPETS, start=1):
            run_snippet(sbx, i, code)

        # Artefacts produced by one snippet survive for the next —
        # the sandbox is persistent until you kill it.
        info = sbx.files.get_info("/tmp/chart.png")
        print(f"\nchart.png exists: {info.size} bytes")
    finally:
        sbx.kill()


if __name__ == "__main__":
    main()
