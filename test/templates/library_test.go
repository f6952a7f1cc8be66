package templates

import (
	"strings"
	"testing"
)

// programs use every library that the template promises, each for what it is for.
var programs = []struct{ name, program, want, noise string }{
	{name: "numpy", program: `
import numpy as np
a = np.arange(12).reshape(3, 4)
print(a @ a.T)
print(np.linalg.solve([[3, 1], [1, 2]], [9, 8]), np.random.default_rng(0).integers(10) < 10)
`, want: `[[ 14  38  62]
 [ 38 126 214]
 [ 62 214 366]]
[2. 3.] True`},
	{name: "pandas", program: `
import io, pandas as pd
df = pd.read_csv(io.StringIO("city,day,n\nRome,1,3\nOslo,1,5\nRome,2,4\n"))
print(df.groupby("city")["n"].sum().to_dict())
print(pd.date_range("2024-02-28", periods=3).strftime("%d").tolist())
`, want: "{'Oslo': 5, 'Rome': 7}\n['28', '29', '01']"},
	{name: "scipy", program: `
from scipy import integrate, optimize, stats, signal, sparse
print(round(integrate.quad(lambda x: x**2, 0, 3)[0], 6))
print(optimize.minimize(lambda x: (x[0] - 1) ** 2, [0]).x.round(3))
print(round(stats.norm.cdf(1.96), 3), signal.find_peaks([0, 2, 0, 3, 0])[0], sparse.eye(3).nnz)
`, want: "9.0\n[1.]\n0.975 [1 3] 3"},
	{name: "scikit-learn", program: `
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
x, y = load_iris(return_X_y=True)
print(cross_val_score(LogisticRegression(max_iter=500), x, y, cv=3, n_jobs=2).mean() > 0.9)
`, want: "True"},
	{name: "matplotlib", program: `
import matplotlib
import matplotlib.pyplot as plt
print(matplotlib.get_backend().lower())
plt.plot([1, 4, 9]); plt.savefig("/tmp/plot.png"); plt.savefig("/tmp/plot.pdf"); plt.savefig("/tmp/plot.svg")
print(open("/tmp/plot.png", "rb").read(8), open("/tmp/plot.pdf", "rb").read(5))
plt.show()
`, want: `agg
b'\x89PNG\r\n\x1a\n' b'%PDF-'`},
	{name: "seaborn", program: `
import pandas as pd, seaborn as sns
sns.set_theme()
axes = sns.barplot(pd.DataFrame({"a": ["x", "y"], "b": [1, 2]}), x="a", y="b")
axes.figure.savefig("/tmp/sns.png")
print(len(axes.patches))
`, want: "2"},
	{name: "plotly", program: `
import json, plotly.express as px, plotly.io as pio
figure = px.scatter(x=[1, 2], y=[3, 4])
print(json.loads(figure.to_json())["data"][0]["type"], "<div" in pio.to_html(figure))
figure.write_html("/tmp/plotly.html")
`, want: "scatter True"},
	{name: "Pillow", program: `
from PIL import Image, ImageDraw, ImageFont, features
im = Image.new("RGB", (40, 20), "white")
ImageDraw.Draw(im).text((2, 2), "hé", fill="black", font=ImageFont.truetype("NotoSansCJK-Regular.ttc", 12))
for kind in "png", "jpeg", "webp", "gif":
    im.save(f"/tmp/im.{kind}"); print(Image.open(f"/tmp/im.{kind}").format, end=" ")
print(im.resize((4, 2)).size, features.check("freetype2"))
`, want: "PNG JPEG WEBP GIF (4, 2) True"},
	{name: "SymPy", program: `
from sympy import symbols, integrate, solve, sin, latex, Rational
x = symbols("x")
print(integrate(sin(x), x), solve(x**2 - 2), latex(Rational(1, 3)))
`, want: `-cos(x) [-sqrt(2), sqrt(2)] \frac{1}{3}`},
	{name: "openpyxl", program: `
import openpyxl, pandas as pd
book = openpyxl.Workbook(); book.active.append(["a", 1]); book.save("/tmp/book.xlsx")
print(openpyxl.load_workbook("/tmp/book.xlsx").active["B1"].value, pd.read_excel("/tmp/book.xlsx", header=None).shape)
`, want: "1 (1, 2)"},
	{name: "xlsxwriter", program: `
import pandas as pd, xlsxwriter
with pd.ExcelWriter("/tmp/x.xlsx", engine="xlsxwriter") as w:
    pd.DataFrame({"é": [1, 2]}).to_excel(w, index=False)
print(pd.read_excel("/tmp/x.xlsx").columns.tolist(), xlsxwriter.Workbook("/tmp/y.xlsx").close())
`, want: "['é'] None"},
	{name: "requests", program: `
import threading, http.server, requests
server = http.server.HTTPServer(("127.0.0.1", 0), type("H", (http.server.BaseHTTPRequestHandler,), {
    "do_GET": lambda s: (s.send_response(200), s.end_headers(), s.wfile.write(b'{"a": 1}')), "log_message": lambda *a: None}))
threading.Thread(target=server.serve_forever, daemon=True).start()
print(requests.get(f"http://127.0.0.1:{server.server_port}").json())
`, want: "{'a': 1}"},
	{name: "IPython", program: `
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(history_length=0)
print(shell.run_cell("21 * 2", store_history=True).result)
`, want: "Out[1]: 42\n42"},
	{name: "Jupyter", program: `
import logging, nbformat
from nbclient import NotebookClient
cells = ["import matplotlib.pyplot as plt\nplt.plot([1, 2])", "6 * 7"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
NotebookClient(book, timeout=60).execute()
print([o.get("text", list(o.get("data", {}))) for o in book.cells[0].outputs], book.cells[1].outputs[0]["data"])
`, want: "[['text/plain'], ['text/plain', 'image/png']] {'text/plain': '42'}", noise: "[IPKernelApp] WARNING | Kernel is running over TCP"},
	{name: "standard library", program: `
import ssl, sqlite3, lzma, bz2, zlib, ctypes, curses, readline, hashlib, zoneinfo, multiprocessing, venv, uuid
print(zoneinfo.ZoneInfo("Asia/Tokyo"), sqlite3.connect(":memory:").execute("select 1+1").fetchone())
import os, sys; print(sys.version_info >= (3, 11), os.path.basename(sys.executable))
`, want: "Asia/Tokyo (2,)\nTrue python"},
}

func TestLibraries(t *testing.T) {
	b := newBox(t, "code-interpreter")
	b.write(t, "/stamp", nil)
	for i, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			// Users by turns: what a library does differs little between them, and what
			// a user has of its own, such as font caches, has tests of its own.
			user := []string{"root", "user"}[i%2]
			b.sh(t, "", "rm -rf /tmp/*").want(t, "")
			o := b.python(t, user, p.program)
			if p.noise != "" && strings.Contains(o.stderr, p.noise) {
				o.stderr = ""
			}
			o.want(t, p.want)
			t.Logf("as %s in %.2f s", user, o.took.Seconds())
		})
	}
	// Nothing is compiled in a sandbox: imports leave no file behind.
	b.sh(t, "", "find / -xdev -newer /stamp -name '*.pyc'").want(t, "")
}

// scripts are drawn on a chart by default, in a style, and in bold.
func TestFontsCoverScripts(t *testing.T) {
	b := newBox(t, "code-interpreter")
	const program = `
import logging, warnings
warnings.simplefilter("error")
logging.basicConfig(level=logging.WARNING)
import matplotlib.pyplot as plt, seaborn as sns
text = ("é ñ ß Ж Ω", "日本語", "简体 繁體", "한국어", "العربية", "עברית", "ไทย", "हिन्दी", "বাংলা", "ਪੰਜਾਬੀ", "ગુજરાતી",
        "ଓଡ଼ିଆ", "தமிழ்", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "සිංහල", "😀 → ✓ ∑")
def draw(name, **kw):
    figure, axes = plt.subplots()
    for i, t in enumerate(text):
        axes.text(0.1, i / len(text), t, **kw)
    axes.set_title("日本語 العربية हिन्दी é", **kw)
    for kind in ("png", "pdf", "svg") if name == "plain" else ("png",):
        figure.savefig(f"/tmp/{name}.{kind}")
    print(name, axes.title.get_text().startswith("日"))
draw("plain")
draw("bold", fontweight="bold", fontsize=20)
draw("italic", fontstyle="italic")
draw("serif", fontfamily="serif")
plt.style.use("ggplot"); draw("ggplot")
sns.set_theme(); draw("seaborn")
plt.rcdefaults(); draw("defaults")
`
	b.python(t, "root", program).want(t, "plain True\nbold True\nitalic True\nserif True\nggplot True\nseaborn True\ndefaults True")
	// The list of fonts is there for both users and is not made anew.
	for _, user := range []string{"root", "user"} {
		b.sh(t, user, `cd ~/.cache/matplotlib && touch /tmp/stamp && cd /tmp && MPLBACKEND= python -c '
import matplotlib.pyplot as plt
plt.title("日本"); plt.savefig("f.png")' && find ~/.cache -newer /tmp/stamp && ls ~/.cache/matplotlib && rm -f /tmp/f.png /tmp/stamp`).want(t, "fontlist-v3.11.0.json")
	}
}
