"""Programs over a mesh, each sharded as its kind is in practice: specs on the parameters, and
on activations where users write them.

A mesh has one axis, DATA, or two, DATA and MODEL. What is split by FSDP, or by the batch alone, is
split along all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.meshes.programs import AXIS, decoder
from benchmarks.programs import mixture_of_experts, unet
from benchmarks.programs.common import Parameters, checkpoint_with
from benchmarks.programs.gpt import Gpt
from benchmarks.programs.sharded import DATA, MODEL, ShardedDecoder

_SIZES: dict[str, Any] = {"width": 1024, "vocabulary": 8192, "batch": 16, "sequence": 512}
"""Of what a device has XLA then splits few products' sums into parts, which no model of memory
foresees: on a GPU they are chosen by time."""

_AS_IT_IS = checkpoint_with(None, prevent_cse=False)


def fully_sharded(mesh: Mesh) -> Any:
    """A Llama-style decoder, parameters and batch split over all devices."""
    return _decoder(mesh, data=mesh.axis_names, model=None).lower()


def fully_sharded_on_one_axis(mesh: Mesh) -> Any:
    """A decoder that is written for automatic and for explicit axes; ValueError on two of them."""
    [kind] = mesh.axis_types
    return decoder(Mesh(mesh.devices, (AXIS,), (kind,)))


def tensor_parallel(mesh: Mesh) -> Any:
    """The decoder, heads and hidden units split over all devices."""
    return _decoder(mesh, data=None, model=mesh.axis_names).lower()


def sharded_twice(mesh: Mesh) -> Any:
    """The decoder, FSDP along one axis of the mesh and tensor parallel along the other."""
    return _decoder(mesh).lower()


def checkpointed(mesh: Mesh) -> Any:
    """The same, each layer computed again in the backward pass."""
    return _decoder(mesh, policy="nothing_saveable").lower()


def unrolled(mesh: Mesh) -> Any:
    """The same, layers unrolled."""
    return _decoder(mesh, policy="nothing_saveable", scanned=False).lower()


def unrolled_whole(mesh: Mesh) -> Any:
    """The same, parameters and batch split over all devices."""
    fields: dict[str, Any] = {"data": mesh.axis_names, "model": None}
    return _decoder(mesh, policy="nothing_saveable", scanned=False, **fields).lower()


def many_words(mesh: Mesh) -> Any:
    """The scanned one with the vocabulary of Llama 3: its loss takes the most memory."""
    return _decoder(mesh, policy="nothing_saveable", vocabulary=128256).lower()


def many_words_whole(mesh: Mesh) -> Any:
    """The same, parameters and batch split over all devices: each has whole rows of the logits."""
    axes = mesh.axis_names
    return _decoder(
        mesh, policy="nothing_saveable", vocabulary=128256, data=axes, model=None
    ).lower()


def _decoder(mesh: Mesh, **fields: Any) -> ShardedDecoder:
    return ShardedDecoder(mesh, **_SIZES | fields, hidden=2816)


def experts(mesh: Mesh) -> Any:
    """A mixture of experts: experts along the last axis of the mesh, the batch along the first, and
    along that the width of what each expert multiplies by."""
    step, (parameters, x) = mixture_of_experts.program(_AS_IT_IS)
    last = mesh.axis_names[-1]
    first = DATA if last != DATA else None
    specs = {
        "gain": PartitionSpec(),
        "router": PartitionSpec(None, first),
        "up": PartitionSpec(None, last, first),
        "down": PartitionSpec(None, last, None, first),
    }
    return _lowered(step, mesh, (parameters, specs), (x, PartitionSpec(DATA)))


def gpt_scanned(mesh: Mesh) -> Any:
    """A GPT whose parameters alone have specs, layers in a scan."""
    return gpt(mesh, scanned=True)


def gpt_unrolled(mesh: Mesh) -> Any:
    """The same, layers unrolled."""
    return gpt(mesh, scanned=False)


def gpt_checkpointed(mesh: Mesh) -> Any:
    """The same, each layer computed again in the backward pass."""
    return gpt(mesh, scanned=False, policy="nothing_saveable")


def gpt(mesh: Mesh, *, scanned: bool, policy: str | None = None) -> Any:
    """A GPT whose parameters alone have specs; the policy is of `jax.checkpoint_policies`, on its
    blocks, or None."""
    program = Gpt(scanned, policy, layers=4, **_SIZES)
    model = MODEL if MODEL in mesh.axis_names else None
    by_name = {
        "embedding": (model, DATA),
        "position": (),
        "query_key_value": (DATA, model),
        "attention_out": (model, DATA),
        "up": (DATA, model),
        "down": (model, DATA),
    }

    def spec(path: Any, leaf: Any) -> PartitionSpec:
        stacked = (None,) if scanned and "layers" in str(path) else ()
        return PartitionSpec(*stacked, *by_name[path[-1].key])

    parameters = program.parameters()
    specs = jax.tree_util.tree_map_with_path(spec, parameters)
    step = jax.value_and_grad(program.loss)
    return _lowered(step, mesh, (parameters, specs), (program.tokens(), PartitionSpec(DATA)))


def unet_by_batch(mesh: Mesh) -> Any:
    """A U-Net, the batch split over all devices."""
    step, (parameters, images) = unet.program(_AS_IT_IS)
    specs = jax.tree.map(lambda _: PartitionSpec(), parameters)
    return _lowered(step, mesh, (parameters, specs), (images, PartitionSpec(mesh.axis_names)))


class _Perceptron(nnx.Module):  # type: ignore[misc] # Flax has no types
    """Residual layers of Flax, with the metadata that says how their kernels are split."""

    def __init__(self, width: int, layers: int, axes: tuple[str | None, str | None]) -> None:
        rngs, lecun = nnx.Rngs(0), nnx.initializers.lecun_normal()

        def linear(inner: int, outer: int, *split: str | None) -> nnx.Linear:
            kernel = nnx.with_partitioning(lecun, split)
            bias = nnx.with_partitioning(nnx.initializers.zeros_init(), split[1:])
            return nnx.Linear(inner, outer, kernel_init=kernel, bias_init=bias, rngs=rngs)

        rows, columns = axes
        self.layers = nnx.List(
            [
                nnx.List(
                    [
                        linear(width, 4 * width, rows, columns),
                        linear(4 * width, width, columns, rows),
                    ]
                )
                for _ in range(layers)
            ]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        for up, down in self.layers:
            x += down(jax.nn.gelu(up(x)))
        return x


def flax_partitioned(mesh: Mesh) -> Any:
    """A perceptron in Flax nnx, split as the metadata of its parameters says."""
    width, layers, rows = 512, 6, 16384
    model = MODEL if MODEL in mesh.axis_names else None
    with nnx.use_eager_sharding(False):
        abstract = nnx.eval_shape(lambda: _Perceptron(width, layers, (DATA, model)))
    graph, state = nnx.split(abstract)
    specs = nnx.get_partition_spec(state)

    def loss(state: Any, x: jax.Array) -> jax.Array:
        return jnp.square(nnx.merge(graph, state)(x)).mean()

    x = jax.ShapeDtypeStruct((rows, width), "float32")
    return _lowered(jax.value_and_grad(loss), mesh, (state, specs), (x, PartitionSpec(DATA)))


def by_shard_map(mesh: Mesh) -> Any:
    """A scan of residual layers in a `shard_map`: weights gathered along DATA before their use, and
    along MODEL, where there is one, hidden units are split and summed."""
    layers, width, rows = 8, 512, 16384
    model = MODEL if MODEL in mesh.axis_names else None
    specs = {"up": PartitionSpec(None, DATA, model), "down": PartitionSpec(None, model, DATA)}

    def local(p: Parameters, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Parameters) -> tuple[jax.Array, None]:
            up = jax.lax.all_gather(w["up"], DATA, axis=0, tiled=True)
            down = jax.lax.all_gather(w["down"], DATA, axis=1, tiled=True)
            made = jax.nn.gelu(x @ up) @ down
            return x + (made if model is None else jax.lax.psum(made, model)), None

        x, _ = jax.lax.scan(layer, x, p)
        return jax.lax.pmean(jnp.square(x).mean(), DATA)

    loss = jax.shard_map(
        local, mesh=mesh, in_specs=(specs, PartitionSpec(DATA)), out_specs=PartitionSpec()
    )
    parameters = {
        "up": jax.ShapeDtypeStruct((layers, width, 4 * width), "float32"),
        "down": jax.ShapeDtypeStruct((layers, 4 * width, width), "float32"),
    }
    x = jax.ShapeDtypeStruct((rows, width), "float32")
    return _lowered(jax.value_and_grad(loss), mesh, (parameters, specs), (x, PartitionSpec(DATA)))


def _lowered(
    step: Callable[..., Any], mesh: Mesh, parameters: tuple[Any, Any], data: tuple[Any, Any]
) -> Any:
    """A gradient step, lowered; gradients lie as parameters do."""

    def placed(leaf: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    shapes = jax.tree.map(placed, *parameters)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.jit(step, out_shardings=(whole, shardings)).lower(shapes, placed(*data))


PROGRAMS: dict[str, Callable[[Mesh], Any]] = {
    "Llama-style, FSDP": fully_sharded,
    "decoder, FSDP": fully_sharded_on_one_axis,
    "Llama-style, tensor parallel": tensor_parallel,
    "Llama-style, both": sharded_twice,
    "Llama-style, both, checkpointed": checkpointed,
    "Llama-style, both, unrolled, checkpointed": unrolled,
    "Llama-style, FSDP, unrolled, checkpointed": unrolled_whole,
    "Llama-style, both, 128256 words": many_words,
    "Llama-style, FSDP, 128256 words": many_words_whole,
    "mixture of experts": experts,
    "GPT, scanned": gpt_scanned,
    "GPT, unrolled": gpt_unrolled,
    "GPT, unrolled, checkpointed": gpt_checkpointed,
    "U-Net by batch": unet_by_batch,
    "Flax nnx, partitioned": flax_partitioned,
    "shard_map": by_shard_map,
}
