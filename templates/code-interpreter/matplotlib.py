"""Make matplotlib draw on no display, and every script that the fonts here cover."""

import pathlib

import matplotlib

data = pathlib.Path(matplotlib.get_data_path())

# In the library's own defaults, not in a file that MATPLOTLIBRC names, so that a
# matplotlibrc of the user's is still the stronger one; and not in MPLBACKEND, which
# would take the inline figures from Jupyter.
families = [
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Thai",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Gurmukhi",
    "Noto Sans Gujarati",
    "Noto Sans Oriya",
    "Noto Sans Tamil",
    "Noto Sans Telugu",
    "Noto Sans Kannada",
    "Noto Sans Malayalam",
    "Noto Sans Sinhala",
    "Symbola",
]
rc = data / "matplotlibrc"
rc.write_text(rc.read_text() + f"\nbackend: agg\nfont.family: {', '.join(families)}\n")

# Styles, seaborn's among them, set font.family to "sans-serif", for which matplotlib
# takes the first font that it finds and no other: a title in Japanese would be boxes.
# So the families above stay behind any family that is asked for.
manager = pathlib.Path(matplotlib.__file__).with_name("font_manager.py")
old = """        # only add default family if no other font was found and
        # fallback_to_default is enabled
        if not fpaths:
"""
new = """        if fpaths and fontext == 'ttf' and directory is None:
            for family in mpl.rcParamsDefault['font.family']:
                cprop = prop.copy()
                cprop.set_family(family)
                try:
                    path = self.findfont(cprop, fontext, fallback_to_default=False,
                                         rebuild_if_missing=rebuild_if_missing)
                except ValueError:
                    continue
                if path not in fpaths:
                    fpaths.append(path)

"""
text = manager.read_text()
if text.count(old) != 1 or "import matplotlib as mpl\n" not in text:
    raise SystemExit("this matplotlib looks for fonts in another way: adapt matplotlib.py of the recipe")
manager.write_text(text.replace(old, new + old))
