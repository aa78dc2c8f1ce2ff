"""lit's configuration: `lit lit_tests` runs every .mlir file here through hloom-opt and filecheck.

Both tools are those of the interpreter that runs lit, so a test never meets another installation;
where one is missing, lit stops with an error rather than skip a test.
"""

# ruff: noqa: F821 - lit puts `config` and `lit_config` in place.

import atexit
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

import lit.formats

HERE = os.path.dirname(os.path.abspath(__file__))

config.name = "hloom"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = HERE
# One folder for each interpreter: two of them may run the suite at the same time.
config.test_exec_root = os.path.join(
    tempfile.gettempdir(), "hloom-lit-" + re.sub(r"\W+", "-", sys.executable).strip("-")
)

for package, remedy in (("hloom", "install hloom"), ("filecheck", "pip install filecheck")):
    if importlib.util.find_spec(package) is None:
        lit_config.fatal(f"{sys.executable} has no {package}: {remedy} first")


def start_server():
    """The socket of a running opt_server.py that ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="hloom-lit-")
    path = os.path.join(folder.name, "opt")
    server = subprocess.Popen(
        [sys.executable, os.path.join(HERE, "opt_server.py"), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        # An interrupt of lit does not reach it: it ends when lit's end of the pipe closes.
        start_new_session=True,
    )
    if server.stdout.readline() != b"ready\n":
        lit_config.fatal(f"hloom-opt does not start in {sys.executable}")
    atexit.register(folder.cleanup)
    atexit.register(server.stdin.close)
    return path


client = f"{sys.executable} -I -S {os.path.join(HERE, 'opt_client.py')} {start_server()}"
for tool in ("hloom-opt", "filecheck"):
    # Only the bare word: neither a part of a path nor of an option.
    config.substitutions.append((rf"(?<![\w./-]){tool}(?![\w./-])", f"{client} {tool}"))

config.environment["JAX_PLATFORMS"] = "cpu"
