"""Make matplotlib draw on no display, and with every script that there is a font for."""

import pathlib

import matplotlib

# In the library's own defaults: a matplotlibrc of the user's is still the stronger
# one. Not in MPLBACKEND, which would take the inline figures from Jupyter.
rc = pathlib.Path(matplotlib.get_data_path()) / "matplotlibrc"
# In font_manager rather than as a list in font.family: styles, seaborn's among them,
# set that to "sans-serif", for which matplotlib takes one font and no other, so that a
# title in Japanese would be boxes. The fonts below stay behind whatever is asked for.
manager = pathlib.Path(matplotlib.__file__).with_name("font_manager.py")

edits = [
    (rc, "##backend: Agg\n", "backend: Agg\n"),
    (
        manager,
        "class FontManager:\n",
        '''# Fonts behind every other, so that each script is drawn; in the order of preference.
_FALLBACK_FAMILIES = (
    'DejaVu Sans', 'Noto Sans CJK JP', 'Noto Sans Arabic', 'Noto Sans Hebrew', 'Noto Sans Thai',
    'Noto Sans Devanagari', 'Noto Sans Bengali', 'Noto Sans Gurmukhi', 'Noto Sans Gujarati',
    'Noto Sans Oriya', 'Noto Sans Tamil', 'Noto Sans Telugu', 'Noto Sans Kannada',
    'Noto Sans Malayalam', 'Noto Sans Sinhala', 'Symbola',
)


@lru_cache(2)
def _fallback_fonts(bold):
    want = 700 if bold else 400
    found = {}
    for font in fontManager.ttflist:
        if font.name in _FALLBACK_FAMILIES and font.style == 'normal' and font.stretch == 'normal':
            far = abs(_normalize_weight(font.weight) - want)
            if font.name not in found or far < found[font.name][0]:
                found[font.name] = far, FontPath(_cached_realpath(font.fname), font.index)
    return [found[name][1] for name in _FALLBACK_FAMILIES if name in found]


class FontManager:
''',
    ),
    (
        manager,
        "        return fpaths\n\n    @lru_cache(1024)\n    def _findfont_cached(",
        """        if fontext == 'ttf' and directory is None:
            fpaths += [p for p in _fallback_fonts(_normalize_weight(prop.get_weight()) >= 600)
                       if p not in fpaths]
        return fpaths

    @lru_cache(1024)
    def _findfont_cached(""",
    ),
]
for path, old, new in edits:
    text = path.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"this matplotlib has no {old!r} in {path.name}: adapt matplotlib.py of the recipe")
    path.write_text(text.replace(old, new))
