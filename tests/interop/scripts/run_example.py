"""Runs a script with its arguments, and exits without the destructors of gloo: run_example.py SCRIPT ARGUMENTS..."""

import runpy
import sys

from leave import leave

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
leave()
