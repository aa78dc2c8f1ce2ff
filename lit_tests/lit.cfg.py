"""lit's configuration: `lit lit_tests` runs every .mlir file here through hloom-opt and filecheck.

Both tools are run by the interpreter that runs lit, so a test never meets another installation;
where one is missing, lit stops with an error rather than skip a test.
"""

import importlib.util
import os
import re
import sys
import tempfile

import lit.formats

config.name = "hloom"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.excludes = ["inputs"]  # noqa: F821
config.test_source_root = os.path.dirname(os.path.abspath(__file__))  # noqa: F821
# One folder for each interpreter: two of them may run the suite at the same time.
config.test_exec_root = os.environ.get("HLOOM_LIT_OUTPUT") or os.path.join(  # noqa: F821
    tempfile.gettempdir(), "hloom-lit-" + re.sub(r"\W+", "-", sys.executable)
)

for package, remedy in (("hloom", "install hloom"), ("filecheck", "pip install filecheck")):
    if importlib.util.find_spec(package) is None:
        lit_config.fatal(f"{sys.executable} has no {package}: {remedy} first")  # noqa: F821

for tool, module in (("hloom-opt", "hloom.opt"), ("filecheck", "filecheck")):
    # Only the bare word: neither the end of a path nor an option such as --hloom-opt.
    word = rf"(?<![\w./-]){tool}(?![\w./-])"
    config.substitutions.append((word, f"{sys.executable} -m {module}"))  # noqa: F821

config.environment["JAX_PLATFORMS"] = "cpu"  # noqa: F821
for variable in ("HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"):
    if variable in os.environ:
        config.environment[variable] = os.environ[variable]  # noqa: F821
