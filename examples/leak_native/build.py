"""Builds leaky.c for the interpreter that runs this file: python build.py [FOLDER]; prints the module's path.

Only the compiler and headers the interpreter itself names are used: setuptools is not part of Python 3.12 and later.
"""
import os
import shlex
import subprocess
import sys
import sysconfig


def build(folder):
    here = os.path.dirname(os.path.abspath(__file__))
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        sys.exit("no Python.h in %s" % include)
    target = os.path.join(folder, "leaky" + sysconfig.get_config_var("EXT_SUFFIX"))
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    subprocess.check_call(compiler + [
        "-O2", "-g", "-fPIC", "-shared", "-pthread", "-Wall",
        "-I" + include, os.path.join(here, "leaky.c"), "-o", target,
    ])
    return target


if __name__ == "__main__":
    print(build(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))))
