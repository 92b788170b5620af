#!python
"""Becomes the program of this script's name that the installed package varve brings."""

import os
import sys

name = os.path.basename(os.path.realpath(__file__))
for folder in sys.path:
    program = os.path.join(folder, "varve", "bin", name)
    if os.access(program, os.X_OK):
        os.execv(program, sys.argv)
sys.exit(f"{name}: {sys.executable} finds no package varve with bin/{name} in {sys.path}")
