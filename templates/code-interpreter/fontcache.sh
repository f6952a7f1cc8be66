# The list of fonts is kept for each user; making it takes seconds.
python3 - <<'PY'
import io
import warnings

warnings.simplefilter("error")
import matplotlib
import matplotlib.pyplot as plt
from matplotlib import font_manager

names = {f.name for f in font_manager.fontManager.ttflist}
missing = [f for f in matplotlib.rcParams["font.family"] if f not in names]
if missing:
    raise SystemExit(f"fonts are missing: {missing}")
plt.title("é 日本語 한국어 العربية हिन्दी")
plt.savefig(io.BytesIO())
PY
ls ~/.cache/matplotlib
