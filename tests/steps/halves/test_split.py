"""`hloom.split`: what it takes, what it gives, and what it says of mistakes.

`hloom.split` of a GPT over 8 devices: values, and bytes of a device as XLA has them.

Programs as people write them: the two halves give what `value_and_grad` gives.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.programs import normal
from support.programs.libraries import diffrax_neural_ode, equinox_mlp
from support.results import assert_close

import hloom
from benchmarks.programs.gpt import Gpt
from hloom.passes.framework.tables import facts_of

W, X = normal(16, 16) / 4, normal(8, 16, seed=1)


def loss(w: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w).sum()


def several(params: Any, x: Any, flag: Any, *, scale: Any = 1.0) -> Any:
    hidden = jnp.tanh(x @ params["w"]) * jnp.where(flag > 0, 2.0, 1.0) * scale
    return {"a": (hidden**2).sum(0), "b": hidden.mean()}, {"norm": jnp.linalg.norm(hidden)}


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1, 0), -2])
def test_trees_auxiliary_outputs_and_keyword_arguments(argnums: Any) -> None:
    args = ({"w": W, "unused": jnp.ones(3)}, X, jnp.int32(1))
    fwd, bwd = hloom.split(several, argnums, has_aux=True)
    y, residuals, aux = fwd(*args, scale=3.0)
    cotangent = jax.tree.map(jnp.cos, y)
    gradients = bwd(residuals, cotangent)
    numbers = (argnums,) if isinstance(argnums, int) else argnums

    @jax.jit
    def reference(args: Any, cotangent: Any) -> Any:
        def f(*given: Any) -> Any:
            known = list(args)
            for number, value in zip(numbers, given, strict=True):
                known[number] = value
            return several(*known, scale=3.0)

        y, pullback, aux = jax.vjp(f, *[args[number] for number in numbers], has_aux=True)
        found = pullback(cotangent)
        return y, aux, found[0] if isinstance(argnums, int) else found

    assert_close((y, aux, gradients), reference(args, cotangent))
    # Two of an output: the same residuals serve for another cotangent.
    assert_close(bwd(residuals, jax.tree.map(jnp.zeros_like, y)),
                 jax.tree.map(jnp.zeros_like, gradients))  # fmt: skip


def test_residuals_are_named_and_arguments_are_the_callers_own() -> None:
    fwd, _ = hloom.split(loss)
    _, residuals = fwd(W, X)
    assert all(re.fullmatch(r"\w+ test_split\.py:\d+( #\d)?", name) for name in residuals.values)
    assert residuals.arguments["w"] is W
    assert residuals.arguments["x"] is X
    assert residuals.nbytes == sum(value.nbytes for value in residuals.values.values())
    title, head, *rows = repr(residuals).splitlines()
    assert title.startswith(f"{len(residuals.values)} residuals, ")
    assert head.split() == ["takes", "values", "type", "made", "by"]
    assert rows
    assert all("float32[8,16]" in row for row in rows)
    leaves, tree = jax.tree.flatten(residuals)
    assert len(leaves) == len(residuals.values) + 2
    assert repr(jax.tree.unflatten(tree, leaves)) == repr(residuals)


def test_the_forward_program_gives_what_the_plan_says() -> None:
    fwd, bwd = hloom.split(loss)
    y, residuals = fwd.eval_shape(W, X)
    figures = fwd.lower(W, X).compile().memory_analysis()
    pointers = 8 * (1 + len(residuals.values))  # of a tuple of results, on a CPU
    assert figures.output_size_in_bytes == residuals.nbytes + 4 + pointers
    assert bwd.lower(residuals, y).compile().memory_analysis().output_size_in_bytes == W.nbytes


def test_inside_a_jit_it_is_the_joint_program() -> None:
    fwd, bwd = hloom.split(loss)

    @jax.jit
    def step(w: Any, x: Any) -> Any:
        y, residuals = fwd(w, x)
        return y, bwd(residuals, 1.0)

    wanted = jax.jit(jax.value_and_grad(loss))
    assert_close(step(W, X), wanted(W, X))
    count = step.lower(W, X).as_text().count("dot_general")
    assert count == wanted.lower(W, X).as_text().count("dot_general")
    assert_close(
        jax.vmap(step, (None, 0))(W, jnp.stack([X, X]))[0], jnp.stack([wanted(W, X)[0]] * 2)
    )


def test_residuals_that_leave_a_jit_are_told_of() -> None:
    fwd, bwd = hloom.split(functools.partial(loss))
    _, residuals = jax.jit(fwd)(W, X)
    with pytest.warns(hloom.HloomWarning, match="traced inside a jit"):
        gradient = bwd(residuals, 1.0)
    assert_close(gradient, jax.jit(jax.grad(loss))(W, X))


def test_backward_inside_a_jit_reads_residuals_of_outside() -> None:
    fwd, bwd = hloom.split(loss)
    _, residuals = fwd(W, X)
    assert_close(jax.jit(bwd)(residuals, jnp.float32(1)), jax.jit(jax.grad(loss))(W, X))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_donated_residuals_are_gone_and_arguments_stay() -> None:
    def square(w: Any, x: Any) -> Any:
        return (jnp.tanh(w @ x) ** 2).sum()

    x = normal(16, 16, seed=3)
    fwd, bwd = hloom.split(square)
    _, residuals = fwd(W, x)
    gradient = bwd(residuals, 1.0, donate=True)
    assert_close(gradient, jax.jit(jax.grad(square))(W, x))
    assert all(value.is_deleted() for value in residuals.values.values())
    assert not W.is_deleted()
    assert not x.is_deleted()


def test_a_bound_and_passes() -> None:
    _, residuals = hloom.split(loss, residuals="512B")[0](W, X)
    assert residuals.nbytes == 512
    assert hloom.records("loss")[-1].spec == "remat,split{residuals=512}"
    hloom.split(loss, passes="off")[0](W, X)
    assert hloom.records("loss")[-1].spec == "split"
    with hloom.passes("cse"):
        hloom.split(loss)[0](W, X)
    assert "cse,split" in [record.spec for record in hloom.records("loss")]


def test_a_dump_has_the_step_and_its_report_the_residuals(tmp_path: Path) -> None:
    with hloom.dump(to=tmp_path):
        hloom.split(loss)[0](W, X)
    folder = hloom.records("loss")[-1].dump_dir
    assert "hloom.residual" in next(folder.glob("*after-split.mlir")).read_text()
    assert any(folder.glob("plan-*-split.json"))
    compiled = json.loads((folder / "manifest.json").read_text())["compile"]
    assert (compiled["compiles"], compiled["compile_s"]) == (0, None)  # XLA has not seen the step


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_arguments(kind: AxisType) -> None:
    def layers(ws: Any, x: Any) -> Any:
        return (jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0] ** 2).mean()

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        split_over = PartitionSpec(None, None, "model")
        if kind is AxisType.Explicit:
            split_over = PartitionSpec()
        ws = jax.device_put(normal(4, 16, 16) / 4, NamedSharding(mesh, split_over))
        x = jax.device_put(X, NamedSharding(mesh, PartitionSpec("data")))
        fwd, bwd = hloom.split(layers, (0, 1))
        y, residuals = fwd(ws, x)
        assert_close((y, bwd(residuals, 1.0)), jax.jit(jax.value_and_grad(layers, (0, 1)))(ws, x))
        compiled = fwd.lower(ws, x).compile()
    held = sum(value.addressable_shards[0].data.nbytes for value in residuals.values.values())
    pointers = 8 * (1 + len(residuals.values))
    assert compiled.memory_analysis().output_size_in_bytes == held + 4 + pointers
    assert held < residuals.nbytes
    facts = hloom.records("layers")[-1].runs[-1].plan["facts"]
    assert {fact["title"]: fact["value"] for fact in facts}["bytes of residuals"] == held


def test_pure_callbacks_stay_in_their_half() -> None:
    def doubled(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda a: 2 * np.asarray(a), shape, jax.lax.stop_gradient(x))

    fwd, bwd = hloom.split(lambda w, x: loss(w, doubled(x)))
    y, residuals = fwd(W, X)
    wanted = jax.jit(jax.value_and_grad(loss))(W, 2 * X)
    assert_close((y, bwd(residuals, 1.0)), wanted)

    @jax.jit
    def with_another(residuals: Any, x: Any) -> Any:
        return doubled(doubled(x)), bwd(residuals, 1.0)

    assert_close(with_another(residuals, X), (4 * X, wanted[1]))


def with_print(w: Any, x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return loss(w, x)


def with_io(w: Any, x: Any) -> Any:
    io_callback(lambda a: None, None, x, ordered=True)
    return loss(w, x)


def with_state(w: Any, x: Any) -> Any:
    return loss(w, x + jax.lax.rng_uniform(0.0, 1.0, x.shape))


@pytest.mark.parametrize(
    ("attempt", "error", "text"),
    [
        (lambda: hloom.split(3), TypeError, "wanted a function, got int"),
        (lambda: hloom.split(loss, "w"), TypeError, "argnums='w': wanted the number"),
        (lambda: hloom.split(loss, 5)[0](W, X), TypeError, "called with 2 positional"),
        (lambda: hloom.split(loss, (0, -2))[0](W, X), ValueError, "names an argument twice"),
        (lambda: hloom.split(loss, residuals="many"), hloom.SpecError, "residuals='many': wanted"),
        (lambda: hloom.split(loss, passes="rmat"), hloom.SpecError, "Did you mean 'remat'"),
        (lambda: hloom.split(loss, passes="split"), hloom.SpecError, "comes last by itself"),
        (lambda: hloom.split(loss)[0](W, "x"), TypeError, "argument x of loss is a str"),
        (lambda: hloom.split(lambda n: n * 2.0)[0](jnp.int32(1)), TypeError, "n is int32"),
        (
            lambda: hloom.split(lambda p: p["w"].sum())[0]({"w": W, "step": jnp.int32(1)}),
            TypeError,
            r"p\['step'\] is int32",
        ),
        (
            lambda: hloom.split(lambda w: (w.sum(), jnp.int32(3)))[0](W),
            TypeError,
            r"output\[1\] of lambda is int32, which has no cotangent",
        ),
        (lambda: hloom.split(loss, has_aux=True)[0](W, X), TypeError, "has_aux=True loss has to"),
        (lambda: hloom.split(with_print)[0](W, X), ValueError, r"debug_print.*test_split.py:\d+"),
        (lambda: hloom.split(with_io)[0](W, X), ValueError, r"io_callback.*test_split.py:\d+"),
        (lambda: hloom.split(with_state)[0](W, X), ValueError, r"rng_uniform.*test_split.py:\d+"),
        (
            lambda: hloom.split(lambda w, x: ((x @ w) ** 2).mean(),
                                passes="accumulate{microbatches=2}")[0](W, X),
            ValueError,
            "output 0 of lambda depends on the cotangents",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_in_a_line(attempt: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        attempt()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("cotangent", "error", "text"),
    [
        ((1.0,), TypeError, r"has the structure PyTreeDef\(\(\*,\)\); wanted that of its output"),
        (jnp.ones(3), ValueError, r"is float32\[3\]; wanted float32\[\], as the output"),
        (jnp.ones((), jnp.int32), ValueError, r"is int32\[\]; wanted float32"),
        ("one", TypeError, "is a str; wanted an array"),
    ],
)
def test_a_cotangent_that_does_not_fit(cotangent: Any, error: type[Exception], text: str) -> None:
    fwd, bwd = hloom.split(loss)
    _, residuals = fwd(W, X)
    with pytest.raises(error, match=text):
        bwd(residuals, cotangent)


def test_residuals_of_another_function() -> None:
    _, residuals = hloom.split(loss)[0](W, X)
    _, bwd = hloom.split(loss)
    with pytest.raises(ValueError, match="loss_backward got residuals of another fwd"):
        bwd(residuals, 1.0)
    with pytest.raises(TypeError, match="wants the residuals that its fwd gave, got int"):
        bwd(3, 1.0)  # type: ignore[arg-type]


ROWS, COLUMNS = PartitionSpec("model"), PartitionSpec(None, "model")
FULLY_SHARDED = dict.fromkeys(
    ("query_key_value", "attention_out", "up", "down", "embedding", "position"),
    PartitionSpec("data"),
)
TENSOR_PARALLEL = {
    "query_key_value": COLUMNS, "up": COLUMNS, "attention_out": ROWS, "down": ROWS,
    "embedding": ROWS,
}  # fmt: skip


def placed(program: Gpt, mesh: jax.sharding.Mesh, specs: Any) -> tuple[Any, jax.Array]:
    """Parameters and tokens on the devices of a mesh."""

    def put(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        spec = specs.get(name, PartitionSpec())
        stacked = program.scanned and name not in ("embedding", "position")
        spec = PartitionSpec(*((None, *spec) if stacked else spec))
        values = 0.05 * normal(*shape.shape, seed=len(name))
        return jax.device_put(values, NamedSharding(mesh, spec))

    tokens = np.random.default_rng(0).integers(0, 64, (program.batch, program.sequence))
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    return (
        jax.tree_util.tree_map_with_path(put, program.parameters()),
        jax.device_put(jnp.asarray(tokens, "int32"), over_data),
    )


@pytest.mark.parametrize(
    ("shape", "specs", "scanned"),
    [((8, 1), FULLY_SHARDED, True), ((2, 4), TENSOR_PARALLEL, False)],
    ids=["fully sharded, scanned", "tensor parallel, unrolled"],
)
def test_a_gpt_over_eight_devices(shape: tuple[int, int], specs: Any, scanned: bool) -> None:
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    program = Gpt(scanned, layers=2, width=64, heads=4, vocabulary=64, batch=16, sequence=32)
    arguments = placed(program, mesh, specs)
    with jax.set_mesh(mesh):
        fwd, bwd = hloom.split(program.loss)
        y, residuals = fwd(*arguments)
        got = y, bwd(residuals, 1.0)
        assert_close(got, jax.jit(jax.value_and_grad(program.loss))(*arguments), 3e-6)
        figures = fwd.lower(*arguments).compile().memory_analysis()
    held = sum(value.addressable_shards[0].data.nbytes for value in residuals.values.values())
    assert held * 4 <= residuals.nbytes
    pointers = 8 * (1 + len(residuals.values))  # of a tuple of results, on a CPU
    assert figures.output_size_in_bytes == held + y.nbytes + pointers
    facts = facts_of(hloom.records("loss")[-1].runs[-1].plan)
    assert facts["bytes of residuals"] == held


def test_three_programs_over_eight_devices() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    program = Gpt(scanned=True, layers=2, width=64, heads=4, batch=16, sequence=32)
    parameters, _ = placed(program, mesh, TENSOR_PARALLEL)
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    layers = parameters["layers"]
    x = jax.device_put(normal(16, 32, 64), over_data)
    with jax.set_mesh(mesh):
        fwd, bwd_x, bwd_w = hloom.split(program.stage, argnums=(0, 1), weights=0)
        y, residuals = fwd(layers, x)
        (of_x,), rest = bwd_x(residuals, y)
        of_weights = bwd_w(rest)
        _, pullback = jax.vjp(jax.jit(program.stage), layers, x)
        assert_close((of_weights, of_x), pullback(y), 3e-6)
    held = sum(value.addressable_shards[0].data.nbytes for value in rest.values.values())
    facts = facts_of(hloom.records("stage")[-1].runs[-1].plan)
    assert held == (
        facts["bytes of residuals for gradients of weights"]
        + facts["bytes handed to gradients of weights"]
    )
    assert held * 2 <= rest.nbytes


Loss = tuple[Callable[..., Any], tuple[Any, ...]]
LAYERS, WIDTH, BATCH, SEQUENCE = 2, 32, 2, 16


def gpt(*, scanned: bool) -> Loss:
    program = Gpt(scanned, layers=LAYERS, width=WIDTH, heads=2, vocabulary=64, batch=BATCH,
                  sequence=SEQUENCE)  # fmt: skip
    shapes, tree = jax.tree.flatten(program.parameters())
    parameters = [0.2 * normal(*shape.shape, seed=seed) for seed, shape in enumerate(shapes)]
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (BATCH, SEQUENCE)), "int32")
    return program.loss, (jax.tree.unflatten(tree, parameters), tokens)


def gpt_unrolled() -> Loss:
    return gpt(scanned=False)


def gpt_scanned() -> Loss:
    return gpt(scanned=True)


def normalized(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def llama() -> Loss:
    """Rotary positions, queries in groups, SwiGLU."""

    def rotated(x: jax.Array) -> jax.Array:
        angles = jnp.arange(SEQUENCE)[:, None] * 10.0 ** (-jnp.arange(x.shape[-1] // 2) / 4)
        left, right = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        h = normalized(x)
        query = rotated((h @ p["q"]).reshape(BATCH, SEQUENCE, 2, 2, 8).transpose(0, 2, 3, 1, 4))
        key, value = ((h @ p[n]).reshape(BATCH, SEQUENCE, 2, 8).swapaxes(1, 2) for n in "kv")
        scores = jnp.einsum("bkgtd,bksd->bkgts", query, rotated(key))
        causal = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bkgts,bksd->btkgd", weights, value).reshape(x.shape)
        x = x + mixed @ p["o"]
        h = normalized(x)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    shapes = {"q": (32, 32), "k": (32, 16), "v": (32, 16), "o": (32, 32)}
    shapes |= {"gate": (32, 48), "up": (32, 48), "down": (48, 32)}
    parameters = {name: 0.2 * normal(LAYERS, *shape) for name, shape in shapes.items()}

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        return (normalized(jax.lax.scan(layer, x, parameters)[0]) * jnp.cos(x)).mean()

    return loss, (parameters, normal(BATCH, SEQUENCE, WIDTH))


def mixture_of_experts() -> Loss:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        for _ in range(2):
            gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
            taken = (jax.nn.one_hot(chosen, 4) * gates[..., None]).sum(-2)
            hidden = jax.nn.gelu(jnp.einsum("td,edf->tef", x, p["up"]))
            x = x + jnp.einsum("tef,efd,te->td", hidden, p["down"], taken)
        return (x**2).mean()

    parameters = {
        "router": normal(16, 4),
        "up": 0.2 * normal(4, 16, 32),
        "down": 0.2 * normal(4, 32, 16),
    }
    return loss, (parameters, normal(24, 16))


def resnet() -> Loss:
    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(p: Any, x: jax.Array) -> jax.Array:
        for first, second in zip(p["first"], p["second"], strict=True):
            h = convolved(x, first)
            h = jax.nn.relu((h - h.mean((0, 1, 2))) * jax.lax.rsqrt(h.var((0, 1, 2)) + 1e-5))
            x = jax.nn.relu(x + convolved(h, second))
        return (x.mean((1, 2)) @ p["out"]).std()

    kernels = [0.2 * normal(3, 3, 8, 8, seed=seed) for seed in range(4)]
    parameters = {"first": kernels[:2], "second": kernels[2:], "out": normal(8, 4)}
    return loss, (parameters, normal(2, 8, 8, 8))


def flax_nnx_with_dropout() -> Loss:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)
            self.dropout = nnx.Dropout(0.3, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(self.dropout(nnx.gelu(self.first(x))))

    graph, parameters, others = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(parameters: Any, others: Any, x: jax.Array) -> jax.Array:
        return (nnx.merge(graph, parameters, others, copy=True)(x) ** 2).mean()

    return loss, (parameters, others, normal(8, 16))


def equinox() -> Loss:
    step, arguments = equinox_mlp()
    return step.__wrapped__, arguments  # type: ignore[attr-defined]


def diffrax() -> Loss:
    step, arguments = diffrax_neural_ode()
    return step.__wrapped__, arguments  # type: ignore[attr-defined]


PROGRAMS = (
    gpt_unrolled, gpt_scanned, llama, mixture_of_experts, resnet, flax_nnx_with_dropout, equinox,
    diffrax,
)  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_two_programs_give_what_one_gives(make: Callable[[], Loss]) -> None:
    loss, arguments = make()
    fwd, bwd = hloom.split(loss)
    y, residuals = fwd(*arguments)
    gradients = bwd(residuals, 1.0)
    value, wanted = jax.jit(jax.value_and_grad(loss))(*arguments)
    np.testing.assert_allclose(y, value, rtol=1e-6)
    assert_close(gradients, wanted)
    own = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(arguments) if _is_plain(leaf)}
    assert all(
        v.unsafe_buffer_pointer() in own for v in residuals.arguments.values() if _is_plain(v)
    )


@pytest.mark.parametrize("make", [llama, mixture_of_experts, resnet], ids=lambda m: m.__name__)
def test_three_programs_give_what_one_gives(make: Callable[[], Loss]) -> None:
    loss, arguments = make()
    fwd, bwd_x, bwd_w = hloom.split(loss, argnums=(0, 1), weights=0)
    _, residuals = fwd(*arguments)
    (of_x,), rest = bwd_x(residuals, 1.0)
    of_weights = bwd_w(rest)
    assert_close((of_weights, of_x), jax.jit(jax.grad(loss, (0, 1)))(*arguments))


def _is_plain(leaf: Any) -> bool:
    """Whether an array has a buffer of its own; one of keys has none."""
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
