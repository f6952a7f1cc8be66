"""Loads ringfence_superserve into every Python that has this directory on its PYTHONPATH, and then
what would have been loaded in the place of this file."""

import importlib.machinery
import importlib.util
import os
import sys

import ringfence_superserve

ringfence_superserve.install()

_here = os.path.dirname(os.path.abspath(__file__))
_others = [path for path in sys.path if os.path.abspath(path or ".") != _here]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
