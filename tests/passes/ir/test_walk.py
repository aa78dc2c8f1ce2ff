"""Which function of a module is its program, as budgets and the model of memory see it."""

from __future__ import annotations

import jax
import pytest
from jax.extend.mlir import ir
from support.opt_runs import OPT_MARKS, Run, write
from support.programs import PROGRAMS

from hloom.passes.analysis.memory_model.profile import memory_profile
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk

pytestmark = OPT_MARKS

BUDGET = "remat{budget=1B min_bytes=0}"

FUNCTION = "func.func {visibility} @{name}() {{\n  return\n}}\n"

UNKNOWN = (
    "no function of the module is known to be its program: none is called main, and {} are public"
)


def functions(*names: str, private: tuple[str, ...] = ()) -> str:
    public = [FUNCTION.format(visibility="public", name=name) for name in names]
    return "".join(
        [*(FUNCTION.format(visibility="private", name=name) for name in private), *public]
    )


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        pytest.param(functions("main"), "main", id="main"),
        pytest.param(functions("other", "main"), "main", id="main among others"),
        pytest.param(functions("other", private=("main",)), "main", id="private main"),
        pytest.param(functions("step"), "step", id="one"),
        pytest.param(functions("step", private=("f", "g")), "step", id="one public"),
        pytest.param("func.func @step() {\n  return\n}\n", "step", id="no visibility"),
    ],
)
def test_entry(context: ir.Context, text: str, entry: str) -> None:
    found = walk.entry_function(ir.Module.parse(text))
    assert ir.StringAttr(found.attributes["sym_name"]).value == entry


@pytest.mark.parametrize(
    ("text", "public"), [(functions("f", "g"), 2), (functions(private=("f",)), 0), ("module {}", 0)]
)
def test_no_entry(context: ir.Context, text: str, public: int) -> None:
    module = ir.Module.parse(text)
    for asks in (walk.entry_function, predict, memory_profile):
        with pytest.raises(walk.NoEntryError) as caught:
            asks(module)
        assert str(caught.value) == UNKNOWN.format(public)


def lowered(name: str, entry: str) -> str:
    function, arguments = PROGRAMS[name]()
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    text = str(module.operation.get_asm(enable_debug_info=True))
    assert text.count("@main(") == 1
    return text.replace("@main(", f"@{entry}(")


@pytest.mark.parametrize("name", ["unrolled_mlp", "scanned_mlp"])
def test_a_budget_does_not_depend_on_the_name(context: ir.Context, name: str) -> None:
    plans, texts, memory = [], [], []
    for entry in ("main", "step"):
        module = ir.Module.parse(lowered(name, entry))
        done = Pipeline.parse(BUDGET).run(module, target=Target())
        assert not done.runs[-1].empty
        plans.append(done.runs[-1].plan)
        texts.append(str(module).replace(f"@{entry}(", "@main("))
        memory.append((predict(module).step_bytes, memory_profile(module)))
    assert plans[0] == plans[1]
    assert texts[0] == texts[1]
    assert memory[0] == memory[1]


@pytest.mark.parametrize("text", [functions("f", "g"), "module {}\n"])
def test_a_budget_of_no_program_is_warned_of(run: Run, text: str) -> None:
    status, out, err = run(write(text), "-p", BUDGET)
    why = UNKNOWN.format(text.count("public"))
    assert (status, err) == (0, f"a.mlir: warning: no budget can be held: {why}\n")
    assert out == run(write(text))[1]
    _, _, err = run(write(text), "-p", BUDGET, "--print-plan")
    assert f'"summary": "nothing to do: no budget can be held: {why}"' in err
