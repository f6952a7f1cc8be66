from ringfence import NetworkConfig, Sandbox

sandbox = Sandbox.create(
    name="code-interpreter",
    from_template="superserve/code-interpreter",
    network=NetworkConfig(deny_out=["0.0.0.0/0"]),
)

code = """
import pandas as pd
df = pd.DataFrame({"x": [1, 2, 3, 4], "y": [2, 4, 6, 8]})
print(df.describe())
"""  # the model's code

sandbox.files.write("/home/user/cell.py", code)
result = sandbox.commands.run("python cell.py", timeout_seconds=60)
print(result.exit_code, result.stdout, result.stderr)

run_python_tool = {
    "name": "run_python",
    "description": "Run Python code in a sandbox. Returns the exit code, stdout, and stderr.",
    "input_schema": {
        "type": "object",
        "properties": {"code": {"type": "string"}},
        "required": ["code"],
    },
}


def run_python(code: str) -> dict:
    sandbox.files.write("/home/user/cell.py", code)
    r = sandbox.commands.run("python cell.py", timeout_seconds=60)
    return {
        "exit_code": r.exit_code,
        "stdout": r.stdout[-10_000:],  # keep the model's context small
        "stderr": r.stderr[-10_000:],
    }


sandbox.files.write(
    "/home/user/sales.csv",
    "month,revenue\nJan,120\nFeb,150\nMar,90\nApr,180\n",
)

sandbox.files.write(
    "/home/user/cell.py",
    """
import pandas as pd
import matplotlib.pyplot as plt

df = pd.read_csv("sales.csv")
df.plot(x="month", y="revenue", kind="bar", legend=False)
plt.ylabel("Revenue")
plt.savefig("chart.png", dpi=150)
print(df["revenue"].sum())
""",
)
run = sandbox.commands.run("python cell.py", timeout_seconds=60)
print(run.stdout)  # 540

png = sandbox.files.read("/home/user/chart.png")
with open("chart.png", "wb") as f:
    f.write(png)

sandbox.kill()
