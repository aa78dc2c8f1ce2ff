"""`hloom fits` finds the largest batch, or sequence, of a program that fits each of some
devices."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hloom import targets
from hloom._jax.local_devices import NoDeviceError, local_devices
from hloom.passes.framework.errors import did_you_mean, reason_of
from hloom_tools.estimates.ask import fits_of
from hloom_tools.estimates.sizes import MOST, Program, SizesError, place_of, targets_named
from hloom_tools.output import Findings, add_outputs, run_part
from hloom_tools.progress import progress_line
from hloom_tools.target_option import add_target, several_targets

_EPILOG = """\
PROGRAM names a function of a size that gives a jitted step and its arguments; shapes do:

  # train.py
  def sized(batch):
      tokens = jax.ShapeDtypeStruct((batch, 2048), "int32")
      return jax.jit(train_step, donate_argnums=0), jax.eval_shape(make_state), tokens

  hloom fits train.py:sized --target a100_sxm_40,h100_sxm,v5p

The file is imported, not run as a program. In Python: `hloom.fits(step, state, tokens)`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom fits` to a parser."""
    parser.description = (
        "Finds the largest size of a program, such as its batch, that fits each device, as it is "
        "and with `fit`. The program is traced and lowered for each size; nothing is compiled "
        "and nothing runs."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("program", metavar="PROGRAM", help="FILE.py:FUNCTION or MODULE:FUNCTION")
    several = "devices, with commas between or again for each (default: all that are listed)"
    add_target(parser, several, type=several_targets, action="extend", metavar="NAMES")
    parser.add_argument(
        "--multiple", type=int, default=1, metavar="N", help="sizes are multiples of N (default: 1)"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=MOST,
        metavar="N",
        help="larger sizes are not looked for (default: %(default)s)",
    )
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom fits` and returns its exit status: 0, or 1 for a mistake, reported on stderr."""
    from hloom.targets import deviceless

    deviceless.prepare()
    return run_part("hloom fits", _part, arguments)


def _part(arguments: argparse.Namespace) -> Findings:
    try:
        chosen = targets_named(arguments.target)
        program = load_program(arguments.program)
        local_devices()  # a backend that cannot start is no fault of the program
        sizes = {"multiple": arguments.multiple, "most": arguments.most}
        with progress_line() as report:
            found = fits_of(program, chosen, **sizes, report=report)
    except targets.TargetError as error:
        raise SizesError(f"--target: {error}") from error
    except NoDeviceError as error:
        raise SizesError(f"{error}. JAX_PLATFORMS=cpu is enough to trace a program.") from error
    except TypeError as error:
        raise SizesError(str(error)) from error
    return Findings(found.document, found.to_json())


def load_program(named: str) -> Program:
    """Loads the function that FILE.py:FUNCTION or MODULE:FUNCTION names. Raises SizesError."""
    place, colon, name = named.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise SizesError(
            f"PROGRAM is FILE.py:FUNCTION or MODULE:FUNCTION, got {named!r}. `hloom fits --help` "
            "has an example."
        )
    module = _imported(place)
    found: Any = getattr(module, name, None)
    if found is None:
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise SizesError(f"{place} has no function '{name}'.{did_you_mean(name, functions)}")
    if not callable(found):
        raise SizesError(f"{named} is no function of a size: it is a {type(found).__name__}.")
    try:
        inspect.signature(found).bind(1)
    except (TypeError, ValueError) as error:
        raise SizesError(
            f"{named} cannot be called with a size alone: {error}. PROGRAM is a function of a size "
            "that gives a jitted step and its arguments; `hloom fits --help` has an example."
        ) from error
    program: Program = found
    return program


def _imported(place: str) -> ModuleType:
    file = Path(place)
    is_file = place.endswith(".py")
    if is_file and not file.is_file():
        raise SizesError(f"{place}: No such file")
    if not is_file and (os.sep in place or file.exists()):
        raise SizesError(f"PROGRAM is FILE.py:FUNCTION or MODULE:FUNCTION, and {place!r} no .py.")
    sys.path.insert(0, str(file.resolve().parent if is_file else Path.cwd()))
    words = sys.argv
    try:
        sys.argv = [place]  # hloom's own errors are not the program's
        if not is_file:
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        hint = ""
        if not isinstance(error, ImportError | SyntaxError):
            hint = (
                " It is imported, not run: what trains belongs below `if __name__ == '__main__':`."
            )
        raise SizesError(
            f"{place} cannot be imported ({reason_of(error)}){place_of(error)}.{hint}"
        ) from error
    finally:
        sys.argv = words
