"""`stages`: the programs of the stages give what the step gives, and cross what the cut says."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from jax.extend.mlir import ir
from support.examples import drawn
from support.modules import module_after
from support.programs import normal
from support.random_programs import ROWS, WIDTH, Step, interpret, programs, run
from support.results import assert_allclose

from benchmarks.programs.uneven import dense_and_experts
from hloom.passes.analysis.loops.counted import runs_of
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Speed, Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_steps.split.boundary import COTANGENT, GRADIENT
from hloom_steps.stages import Stages
from hloom_steps.stages import programs as seam
from hloom_steps.stages.balance import EVEN, StageCuts
from hloom_steps.stages.joint import PARAMETER
from hloom_steps.stages.programs import Direction, Gradient, Parameter, StageOutput, StageValue
from hloom_steps.stages.write import stages_of as stages_of_cut

LAYERS = 6
X, TARGET = normal(ROWS, WIDTH), normal(ROWS, WIDTH, seed=4)
# With NumPy, for XLA would compile it in each worker that collects the tests.
STACKED = 0.4 * np.asarray(normal(LAYERS, WIDTH, WIDTH, seed=1))
MATRIX = 0.4 * np.asarray(normal(WIDTH, WIDTH, seed=2))
VECTOR = 0.1 * np.asarray(normal(WIDTH, seed=3))

PREPARED = "drop-constraints,cse,free-constants"


def joint(f: Callable[..., Any], params: Any, *batch: Any, has_aux: bool = False) -> ir.Module:
    """The module of a loss of (params, *batch), its gradients and its cotangent, marked."""
    leaves, tree = jax.tree.flatten(params)

    def step(leaves: Any, batch: Any, ct: Any) -> Any:
        def of_leaves(*leaves: Any) -> Any:
            return f(jax.tree.unflatten(tree, leaves), *batch)

        y, pullback, *aux = jax.vjp(of_leaves, *leaves, has_aux=has_aux)
        return (y, *aux), pullback(ct)

    lowered = jax.jit(step, keep_unused=True).lower(leaves, batch, jnp.float32(1))
    module = clone_module(lowered.compiler_ir())
    main = walk.entry_function(module)
    results = len(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results)
    with module.context:
        none, unit = ir.DictAttr.get({}), ir.UnitAttr.get()
        marks = [ir.DictAttr.get({PARAMETER: unit})] * len(leaves)
        marks += [none] * len(jax.tree.leaves(batch)) + [ir.DictAttr.get({COTANGENT: unit})]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(marks)
        gradients = [ir.DictAttr.get({GRADIENT: unit})] * len(leaves)
        main.attributes["res_attrs"] = ir.ArrayAttr.get(
            [none] * (results - len(leaves)) + gradients
        )
    return module


def unrolled(p: Any, x: Any) -> Any:
    """Layers one behind the other; the first matrix is the last one, too."""
    x = x @ p["tied"]
    for w in p["layers"]:
        x = x + jnp.tanh(x @ w)
    return ((x @ p["tied"].T) ** 2).sum()


def scanned(p: Any, x: Any) -> Any:
    """The same layers in a scan."""
    x = x @ p["tied"]
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, p["layers"])
    return ((x @ p["tied"].T) ** 2).sum()


def indexed(p: Any, x: Any) -> Any:
    """Layers one behind the other that read slices of one stacked parameter."""
    for number in range(LAYERS):
        x = x + jnp.tanh(x @ p[number])
    return (x * x).sum()


def listed(p: Any, x: Any) -> Any:
    """A scan over layers whose parameters are stacked in the step."""
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, jnp.stack(p))
    return (x * x).sum()


def backwards(p: Any, x: Any) -> Any:
    """A scan from the last layer to the first."""
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, p, reverse=True)
    return (x * x).sum()


def converted(p: Any, x: Any) -> Any:
    """A scan over what a stacked parameter is converted to."""
    layers = p.astype(jnp.bfloat16)
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x.astype(jnp.bfloat16), layers)
    return (x.astype(jnp.float32) ** 2).sum()


def sharing(p: Any, x: Any) -> Any:
    """Layers of a scan that share parameters, and stack an auxiliary output."""

    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w + p["bias"]) @ p["shared"], (x * x).mean()

    x, aux = jax.lax.scan(layer, x, p["layers"])
    return (x * x).sum() + aux.sum(), aux


def encoder_decoder(p: Any, source: Any, target: Any) -> Any:
    """A decoder all of whose layers read what the encoder gives."""
    memory, y = source, target
    for w in p["encoder"]:
        memory = memory + jnp.tanh(memory @ w)
    for w in p["decoder"]:
        y = y + jnp.tanh(jax.nn.softmax((y @ w) @ memory.T) @ memory)
    return ((y - target) ** 2).sum()


def mixed(p: Any, x: Any) -> Any:
    """Mixtures of experts beside dense layers; the mixtures add to the loss."""
    aux = 0.0
    for number, layer in enumerate(p):
        if number % 2:
            x = x + jnp.tanh(x @ layer["w"])
            continue
        gate = jax.nn.softmax(x @ layer["router"])
        aux = aux + (gate.mean(0) ** 2).sum()
        x = x + jnp.einsum("bek,be->bk", jnp.tanh(jnp.einsum("bh,ehk->bek", x, layer["w"])), gate)
    return (x * x).sum() + 0.1 * aux, aux


def dropped(p: Any, x: Any, bits: Any) -> Any:
    """A scan with dropout, and a parameter that nothing reads."""
    keys = jax.random.split(jax.random.wrap_key_data(bits.astype(jnp.uint32)), LAYERS)

    def layer(x: Any, each: Any) -> Any:
        w, key = each
        return x + jnp.where(jax.random.bernoulli(key, 0.8, x.shape), jnp.tanh(x @ w), 0), None

    x, _ = jax.lax.scan(layer, x, (p["layers"], keys))
    return (x * x).sum() + 0.01 * (p["layers"] ** 2).sum()


def recomputed(p: Any, x: Any) -> Any:
    """Checkpointed layers."""
    for w in p:
        x = jax.checkpoint(lambda x, w: x + jnp.sin(jnp.tanh(x @ w)))(x, w)
    return (x * x).sum()


UNROLLED = {"tied": MATRIX, "layers": list(STACKED)}
SCANNED = {"tied": MATRIX, "layers": STACKED}
EXPERTS = [
    {"w": STACKED[n]} if n % 2 else {"w": STACKED[n : n + 2], "router": MATRIX[:, :2].copy()}
    for n in range(4)
]
MODELS: dict[str, tuple[Any, ...]] = {
    "unrolled": (unrolled, UNROLLED, X),
    "scanned": (scanned, SCANNED, X),
    "indexed": (indexed, STACKED, X),
    "listed": (listed, list(STACKED), X),
    "backwards": (backwards, STACKED, X),
    "converted": (converted, STACKED, X),
    "sharing": (sharing, {"layers": STACKED, "bias": VECTOR, "shared": MATRIX}, X),
    "encoder_decoder": (
        encoder_decoder, {"encoder": list(STACKED[:3]), "decoder": list(STACKED[3:])}, X, TARGET,
    ),
    "mixed": (mixed, EXPERTS, X),
    "dropped": (dropped, {"layers": STACKED, "unread": VECTOR}, X, np.array([0, 3], np.int32)),
    "recomputed": (recomputed, list(STACKED), X),
}  # fmt: skip
WITH_AUX = {"sharing", "mixed"}


@functools.cache
def made(name: str) -> tuple[ir.Module, list[Any], list[np.ndarray]]:
    """A model's module, its arguments, and what it gives."""
    f, *arguments = MODELS[name]
    module = joint(f, *arguments, has_aux=name in WITH_AUX)
    flat = [*map(np.asarray, jax.tree.leaves(arguments)), np.float32(1)]
    return module, flat, interpret(module, flat)


def stages_of(
    module: ir.Module, count: int, *, weights: bool = False, **more: Any
) -> seam.StagePrograms:
    """The programs of a module."""
    copy = module_after(module, PREPARED)
    found = Stages(stages=count, weights=weights, **more).plan(copy, Target()).stages
    assert found is not None
    return found


def products(function: ir.Operation) -> int:
    """The matrix products that a function runs, of loops each iteration's."""
    found = walk.operations(function)
    return sum(runs_of(op.block) for op in found if op.name == "stablehlo.dot_general")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("spec", ["stages", "stages{stages=3 weights=on}"])
def test_the_stages_give_what_the_step_gives(name: str, spec: str) -> None:
    module, arguments, wanted = made(name)
    copy = module_after(module, spec)
    assert copy.operation.verify()
    for got, value in zip(interpret(copy, arguments), wanted, strict=True):
        largest = np.abs(value.astype(np.float64)).max() if value.size else 0
        np.testing.assert_allclose(got, value, rtol=0, atol=2e-6 * max(largest, 1e-6))


@seed(34)
@drawn(16)
@given(programs, st.booleans())
def test_random_programs_give_what_they_gave(program: list[Step], weights: bool) -> None:
    """Two runs of a program, so that most have an operation between which they can be cut."""
    module = joint(lambda w, x: (run(program, run(program, x, w) @ w, w) ** 2).sum(), MATRIX, X)
    arguments = [MATRIX, X, np.float32(1)]
    wanted = interpret(module, arguments)
    spec = f"stages{{weights={'on' if weights else 'off'}}}"
    with contextlib.suppress(PassError):  # some have nothing between which they could be cut
        Pipeline.parse(spec).run(module, target=Target())
    assert_allclose(interpret(module, arguments), wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["unrolled", "scanned", "mixed"])
def test_programs_read_what_is_there_and_no_product_is_done_twice(name: str) -> None:
    module, _, _ = made(name)
    stages = stages_of(module, 3, weights=True)
    functions = walk.functions(stages.code)
    there = set[StageValue]()
    for program in stages.programs:
        read = {each for each in program.reads if isinstance(each, StageValue)}
        assert read <= there
        there |= {each for each in program.gives if isinstance(each, StageValue)}
        type_ = ir.FunctionType(
            ir.TypeAttr(functions[program.function].attributes["function_type"]).value
        )
        assert tuple(type_.inputs) == program.arguments
        assert tuple(type_.results) == program.results
        assert len(set(program.reads)) == len(program.reads)
        assert len(set(program.gives)) == len(program.gives)
    kinds = [(each.kind, each.stage) for each in stages.programs]
    assert kinds[:3] == [(Direction.FORWARD, stage) for stage in range(3)]
    assert (Direction.WEIGHTS, 0) not in kinds
    assert {(Direction.WEIGHTS, 1), (Direction.WEIGHTS, 2)} <= set(kinds)
    found = sum(products(functions[program.function]) for program in stages.programs)
    assert found == products(walk.entry_function(module_after(module, PREPARED)))
    outputs = [each for p in stages.programs for each in p.gives if isinstance(each, StageOutput)]
    assert sorted(each.number for each in outputs) == list(range(len(outputs)))


@pytest.mark.parametrize("name", ["unrolled", "scanned"])
def test_the_residual_stream_alone_crosses(name: str) -> None:
    stages = stages_of(made(name)[0], 3)
    sent = [(each.source, each.target, str(each.kind)) for each in stages.transfers]
    assert sent == [(0, 1, "forward"), (1, 2, "forward"), (2, 1, "backward"), (1, 0, "backward")]
    assert {stages.values[each.value].bytes for each in stages.transfers} == {ROWS * WIDTH * 4}
    assert all("test_stages.py" in each.name for each in stages.values)


def test_stacked_parameters_are_placed_by_rows_and_shared_ones_are_found() -> None:
    stages = stages_of(made("scanned")[0], 3)
    held = [stages.parameters(stage) for stage in range(3)]
    rows = [each for found in held for each in found if each.leaf == 0]
    bounds = [(each.start, each.stop) for each in rows]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == LAYERS
    assert [stop for _, stop in bounds[:-1]] == [start for start, _ in bounds[1:]]
    assert stages.shared == [1]
    assert [Parameter(1) in found for found in held] == [True, False, True]
    given = [each.parameter for p in stages.programs for each in p.gives if type(each) is Gradient]
    assert sorted(given, key=str) == sorted([*rows, Parameter(1), Parameter(1)], key=str)


@pytest.mark.once
def test_parameters_that_the_step_stacks_are_in_the_stage_of_their_layer() -> None:
    stages = stages_of(made("listed")[0], 2)
    held = [[each.leaf for each in stages.parameters(stage)] for stage in range(2)]
    assert held == [list(range(LAYERS // 2)), list(range(LAYERS // 2, LAYERS))]
    assert len(stages.transfers) == 2


@pytest.mark.once
def test_no_stage_waits_for_a_gradient_that_layers_share() -> None:
    """The gradients of a parameter that all layers of a scan read cross in no stage."""
    stages = stages_of(made("sharing")[0], 2)
    assert stages.shared == [0, 2]
    stream, auxiliary = 4 * WIDTH * ROWS, 4 * (LAYERS // 2)
    assert {stages.values[each.value].bytes for each in stages.transfers} == {stream, auxiliary}
    assert all(each.kind is Direction.FORWARD or each.target == 0 for each in stages.transfers)


@pytest.mark.once
def test_stages_are_even_with_head_and_embedding() -> None:
    """Of a model of real sizes no stage takes 1.15 of the mean, in any of the two forms."""
    shape = jax.ShapeDtypeStruct

    def layer(x: Any, p: Any) -> Any:
        return x + jax.nn.silu(x @ p["a"]) @ p["b"]

    def loss(p: Any, tokens: Any, labels: Any) -> Any:
        x = p["embedding"][tokens]
        if isinstance(p["layers"], list):
            for each in p["layers"]:
                x = layer(x, each)
        else:
            x, _ = jax.lax.scan(lambda x, each: (layer(x, each), None), x, p["layers"])
        logits = jax.nn.log_softmax(x @ p["embedding"].T)
        return -jnp.take_along_axis(logits, labels[:, None], -1).mean()

    one = {"a": (512, 2048), "b": (2048, 512)}
    tokens = shape((1024,), jnp.int32)
    embedding = shape((4096, 512), jnp.float32)
    for count, layers in (
        (4, [{name: shape(each, jnp.float32) for name, each in one.items()} for _ in range(10)]),
        (2, {name: shape((10, *each), jnp.float32) for name, each in one.items()}),
    ):
        module = joint(loss, {"embedding": embedding, "layers": layers}, tokens, tokens)
        target = Target("cuda", "h100_sxm", speed=Speed())
        Pipeline.parse(PREPARED).run(module, target=target)
        stages = Stages(stages=count).plan(module, target).stages
        assert stages.balance <= 1.15
        assert stages.shared == [0]
        assert len(stages.transfers) <= 4 * (count - 1)


@pytest.mark.once
def test_uneven_stages_are_cut_again_by_what_their_programs_take() -> None:
    """The first cut of dense and MoE layers has a stage above 1.12 of the mean."""
    loss, parameters, batch = dense_and_experts()
    module = joint(loss, parameters, *batch)
    target = Target("cuda", "h100_sxm", speed=Speed())
    Pipeline.parse(PREPARED).run(module, target=target)
    first = stages_of_cut(StageCuts(module, target, 8).first(), target, weights=False, remat=True)
    stages = Stages(stages=8).plan(module, target).stages
    assert first.balance > 1 + EVEN >= stages.balance
    assert stages.longest < first.longest


@pytest.mark.once
def test_each_stage_is_recomputed_as_remat_says() -> None:
    """The stacks of a scan are fewer where remat plans the stage, and the values are the same."""
    x, stacked = normal(128, 32), 0.2 * normal(4, 32, 32, seed=1)

    def loss(p: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (x + jnp.sin(jnp.tanh(x @ w)), None), x, p)
        return (x * x).sum()

    module = joint(loss, stacked, x)
    kept, stored = (
        [stages_of(module, 2, remat=remat).residual_bytes(stage) for stage in range(2)]
        for remat in (True, False)
    )
    assert all(one < other for one, other in zip(kept, stored, strict=True))
    arguments = [stacked, x, np.float32(1)]
    wanted = interpret(module, arguments)
    Pipeline.parse("stages").run(module, target=Target())
    for got, value in zip(interpret(module, arguments), wanted, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6 * np.abs(value).max())


@pytest.mark.once
def test_the_same_module_gives_the_same_bytes() -> None:
    module, _, _ = made("mixed")
    texts = set[str]()
    for _ in range(2):
        copy = module_after(module, "stages{weights=on}")
        texts.add(str(copy))
    assert len(texts) == 1


@pytest.mark.once
def test_what_cannot_be_cut_is_refused_in_a_line() -> None:
    short = joint(lambda w, x: ((x @ w) ** 2).sum(), MATRIX, X)
    with pytest.raises(PassError, match=r"stages=3: the step has 1 part .* Ask for fewer stages"):
        Pipeline.parse("stages{stages=3}").run(short, target=Target())

    def printing(p: Any, x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return unrolled(p, x)

    told = joint(printing, UNROLLED, X)
    with pytest.raises(PassError, match=r"a callback to Python .*test_stages\.py"):
        Pipeline.parse("stages").run(told, target=Target())
    with pytest.raises(SpecError, match="stages"):
        Stages(stages=1)
    without = joint(unrolled, UNROLLED, X)
    del walk.entry_function(without).attributes["arg_attrs"]
    assert PARAMETER in Stages().plan(without, Target()).refusal
