# The list of fonts is kept for each user; making it takes seconds.
python3 - <<'PY'
import io
import logging
import warnings

warnings.simplefilter("error")
logging.getLogger("matplotlib").addFilter(lambda record: record.levelno < logging.WARNING or exit(record.getMessage()))
import matplotlib.pyplot as plt
from matplotlib import font_manager

fonts = font_manager._fallback_fonts(False)
if len(fonts) != len(font_manager._FALLBACK_FAMILIES):
    raise SystemExit(f"fonts are missing; there are {fonts}")
plt.title("é 日本語 한국어 العربية हिन्दी")
plt.savefig(io.BytesIO())
PY
