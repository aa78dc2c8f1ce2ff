"""Sharding constraints that may be repeated: those that move no data."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from jax.extend.mlir import ir
from support.ir_blocks import last_value

from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.purity import kind_of, may_go
from hloom.passes.analysis.shardings.constraints import SplitSearch
from hloom.passes.ir import walk
from hloom.passes.ir.op_facts import OpKind
from hloom.passes.ir.shardings import CONSTRAINT

MESH = 'sdy.mesh @mesh = <["a"=4, "b"=2]>\nsdy.mesh @one = <["a"=1]>\n'
"""Four by two devices, and one."""

SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'


def _summed_up(along: int) -> str:
    """The sums of all elements up to each, along an axis, behind a constraint."""
    sizes, paddings = ("8, 1", "[7, 0], [0, 0]") if along == 0 else ("1, 8", "[0, 0], [7, 0]")
    return f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%x, %z) <{{
      padding = dense<[{paddings}]> : tensor<2x2xi64>, window_dimensions = array<i64: {sizes}>
    }}> ({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }}) : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{{"a"}}, {{}}]> : tensor<8x8xf32>"""


def _sorted(along: int) -> str:
    """Two values sorted together along an axis, one of them behind a constraint."""
    return f"""%0:2 = "stablehlo.sort"(%x, %x) <{{dimension = {along} : i64}}> ({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):
      %t = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    }}) : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
    %1 = sdy.sharding_constraint %0#1 <@mesh, [{{"a"}}, {{}}]> : tensor<8x8xf32>"""


BODIES = """\
// On what is sharded just so: an argument, or what cheap work makes of such values.
CHEAP %x <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
%0 = stablehlo.tanh %x : tensor<8x8xf32>
%1 = stablehlo.constant dense<1.0> : tensor<8x8xf32>
%2 = stablehlo.add %0, %1 : tensor<8x8xf32>
CHEAP %2 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
// A normalization along the axis that is whole on each device.
%z = stablehlo.constant dense<0.0> : tensor<f32>
%0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
  : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
%1 = stablehlo.reshape %0 : (tensor<8xf32>) -> tensor<8x1xf32>
%2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
%3 = stablehlo.subtract %x, %2 : tensor<8x8xf32>
CHEAP %3 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
// On one device nothing can move.
CHEAP %y <@one, [{"a"}, {}]> : tensor<8x8xf32>
// Split further: each device takes a part of its own. Not along an axis that splits another
// dimension.
CHEAP %x <@mesh, [{"a"}, {"b"}]> : tensor<8x8xf32>
CHEAP %x <@mesh, [{"a", "b"}, {}]> : tensor<8x8xf32>
OPAQUE %x <@mesh, [{}, {"a"}]> : tensor<8x8xf32>
%0 = sdy.sharding_constraint %x <@mesh, [{}, {"b"}]> : tensor<8x8xf32>
OPAQUE %0 <@mesh, [{"b"}, {}]> : tensor<8x8xf32>
// Sharded otherwise, nobody knows how, or left open.
OPAQUE %x <@mesh, [{"b"}, {}]> : tensor<8x8xf32>
OPAQUE %x <@mesh, [{}, {}]> : tensor<8x8xf32>
OPAQUE %y <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
OPAQUE %x <@mesh, [{"a", ?}, {}]> : tensor<8x8xf32>
// A sum along the axis that is split, a transpose, a product of what is split so.
%z = stablehlo.constant dense<0.0> : tensor<f32>
%0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
  : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
OPAQUE %0 <@mesh, [{}]> : tensor<8xf32>
%0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
OPAQUE %0 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1]
  : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
OPAQUE %0 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
// A product of rows of one and columns of the other is made where its parts are.
%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
  : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
CHEAP %0 <@mesh, [{"a"}, {"b"}]> : tensor<8x8xf32>
// A weight split like the batch is gathered by the product, not by the constraint.
%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
  : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
CHEAP %0 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
// The sum of a product along an axis that is split, of whose result nothing is.
%0 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [1]
  : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
OPAQUE %0 <@mesh, [{}, {}]> : tensor<8x8xf32>
// Halves put together again along an axis that is whole on each device, as rotated
// positions are, and along one that is split.
%0 = stablehlo.slice %x [0:8, 0:4] : (tensor<8x8xf32>) -> tensor<8x4xf32>
%1 = stablehlo.concatenate %0, %0, dim = 1 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
CHEAP %1 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
%1 = stablehlo.concatenate %x, %x, dim = 0 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
OPAQUE %1 <@mesh, [{"a"}, {}]> : tensor<16x8xf32>
// Reversed, padded or put into another shape along axes that are whole on each device.
%0 = stablehlo.reverse %x, dims = [1] : tensor<8x8xf32>
%z = stablehlo.constant dense<0.0> : tensor<f32>
%1 = stablehlo.pad %0, %z, low = [0, 1], high = [0, 0], interior = [0, 0]
  : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x9xf32>
CHEAP %1 <@mesh, [{"a"}, {}]> : tensor<8x9xf32>
%0 = stablehlo.reshape %x : (tensor<8x8xf32>) -> tensor<8x2x4xf32>
CHEAP %0 <@mesh, [{"a"}, {}, {}]> : tensor<8x2x4xf32>
%0 = stablehlo.reverse %x, dims = [0] : tensor<8x8xf32>
OPAQUE %0 <@mesh, [{"a"}, {}]> : tensor<8x8xf32>
%0 = stablehlo.reshape %x : (tensor<8x8xf32>) -> tensor<64xf32>
OPAQUE %0 <@mesh, [{"a"}]> : tensor<64xf32>
// A slice along an axis that is whole on each device, and along one that is split.
%c = stablehlo.constant dense<0> : tensor<i32>
%0 = stablehlo.dynamic_slice %x, %c, %c, sizes = [8, 1]
  : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x1xf32>
CHEAP %0 <@mesh, [{"a"}, {}]> : tensor<8x1xf32>
%c = stablehlo.constant dense<0> : tensor<i32>
%0 = stablehlo.dynamic_slice %x, %c, %c, sizes = [4, 8]
  : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<4x8xf32>
OPAQUE %0 <@mesh, [{"a"}, {}]> : tensor<4x8xf32>
// What is chosen, summed up or sorted along an axis that is whole on each device, as a
// router of experts does it, and along one that is split.
%0, %i = chlo.top_k(%x, k = 2) : tensor<8x8xf32> -> (tensor<8x2xf32>, tensor<8x2xi32>)
CHEAP %i <@mesh, [{"a"}, {}]> : tensor<8x2xi32>
%0, %i = chlo.top_k(%w, k = 2) : tensor<8x8xf32> -> (tensor<8x2xf32>, tensor<8x2xi32>)
OPAQUE %i <@mesh, [{}, {"b"}]> : tensor<8x2xi32>
"""
"""Bodies, each with the operand, the sharding and the kind of a constraint at its end."""


def bodies() -> Iterator[tuple[str, OpKind]]:
    for body, kind, constraint in re.findall(r"(.*?)^(CHEAP|OPAQUE) (.*?)$", BODIES, re.M | re.S):
        yield f"{body}%held = sdy.sharding_constraint {constraint}", OpKind[kind]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        *bodies(),
        # What is summed up or sorted along an axis that is whole on each device, and along one
        # that is split.
        (_summed_up(along=1), OpKind.CHEAP),
        (_summed_up(along=0), OpKind.OPAQUE),
        (_sorted(along=1), OpKind.CHEAP),
        (_sorted(along=0), OpKind.OPAQUE),
    ],
)
def test_a_sharding_constraint_is_cheap_only_where_it_moves_nothing(
    context: ir.Context, body: str, kind: OpKind
) -> None:
    columns = SPLIT.replace('[{"a"}, {}]', '[{}, {"b"}]')
    arguments = f"%x: tensor<8x8xf32> {SPLIT}, %y: tensor<8x8xf32>, %w: tensor<8x8xf32> {columns}"
    module = ir.Module.parse(f"{MESH} func.func @main({arguments}) {{\n{body}\nreturn }}")
    block = walk.functions(module)["main"].regions[0].blocks[0]
    assert kind_of(ir.OpResult(last_value(block)).owner.operation) is kind


@pytest.mark.parametrize(
    ("next_value", "kind"),
    [
        ("%c", OpKind.CHEAP),
        ("%1", OpKind.CHEAP),
        ("%t", OpKind.OPAQUE),  # of another sharding than it starts with
    ],
)
def test_a_loop_goes_on_with_the_sharding_that_it_starts_with(
    context: ir.Context, next_value: str, kind: OpKind
) -> None:
    module = ir.Module.parse(f"""{MESH} func.func @main(%x: tensor<8x8xf32> {SPLIT}) {{
    %0 = stablehlo.while(%c = %x) : tensor<8x8xf32> cond {{
      %p = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %n = stablehlo.negate %c : tensor<8x8xf32>
      %1 = sdy.sharding_constraint %n <@mesh, [{{"a"}}, {{}}]> : tensor<8x8xf32>
      %t = stablehlo.transpose %c, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
      stablehlo.return {next_value} : tensor<8x8xf32>
    }}
    return
    }}""")
    loop = walk.functions(module)["main"].regions[0].blocks[0].operations[0].operation
    assert kind_of(loop.regions[1].blocks[0].operations[1].operation) is kind


def test_a_loop_with_a_constraint_inside_is_not_repeated(context: ir.Context) -> None:
    module = ir.Module.parse(f"""{MESH} func.func @main(%x: tensor<8x8xf32> {SPLIT}) {{
    %0 = stablehlo.while(%c = %x) : tensor<8x8xf32> cond {{
      %p = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %1 = sdy.sharding_constraint %c <@mesh, [{{}}, {{}}]> : tensor<8x8xf32>
      stablehlo.return %1 : tensor<8x8xf32>
    }}
    return
    }}""")
    loop = walk.functions(module)["main"].regions[0].blocks[0].operations[0].operation
    assert kind_of(loop) is OpKind.OPAQUE
    assert may_go(loop)  # where nothing reads it


@pytest.mark.parametrize(
    ("x", "y", "wanted", "kind"),
    [
        # Both operands are split along one axis, so that without the constraint Shardy could place
        # the product otherwise. With it the weights are gathered, and nothing is sent behind them.
        ('[{"a"}, {}]', '[{}, {"a"}]', '[{"a"}, {}]', OpKind.EXPENSIVE),
        # What is contracted is split: the devices sum, at the price of the exchange.
        ('[{}, {"a"}]', '[{"a"}, {}]', '[{"a"}, {}]', OpKind.EXPENSIVE),
        # What the sharded program says is known by other rules too, and stays cheap.
        ('[{"a"}, {}]', '[{"a"}, {}]', '[{"a"}, {}]', OpKind.CHEAP),
    ],
)
def test_a_constraint_may_be_repeated_where_it_is_known_what_is_sent(
    context: ir.Context, x: str, y: str, wanted: str, kind: OpKind
) -> None:
    given = ", ".join(
        f"%{name}: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {axes}>}}"
        for name, axes in (("x", x), ("y", y))
    )
    module = ir.Module.parse(f"""{MESH} func.func @main({given}) -> tensor<8x8xf32> {{
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, {wanted}> : tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    return %2 : tensor<8x8xf32>
    }}""")
    program = Program.of(module, DeviceView.of(module))
    assert program.kinds[program.names.index("sdy.sharding_constraint")] is kind
    if kind is not OpKind.CHEAP:
        without = Program.of(module)
        assert without.kinds[without.names.index("sdy.sharding_constraint")] is OpKind.OPAQUE


def test_what_is_sent_at_a_constraint_is_its_price(context: ir.Context) -> None:
    """But not where its operand is sent elsewhere as well, which may be on the way to it."""
    module = ir.Module.parse(f"""{MESH}
    func.func @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"a"}}]>}},
                    %y: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}})
        -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {{
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{{"a"}}, {{}}]> : tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    %3 = stablehlo.tanh %x : tensor<8x8xf32>
    %4 = sdy.sharding_constraint %3 <@mesh, [{{}}, {{"a"}}]> : tensor<8x8xf32>
    %5 = sdy.sharding_constraint %3 <@mesh, [{{}}, {{}}]> : tensor<8x8xf32>
    %6 = stablehlo.tanh %4 : tensor<8x8xf32>
    %7 = stablehlo.tanh %5 : tensor<8x8xf32>
    return %2, %6, %7 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
    }}""")
    device = DeviceView.of(module)
    operations = [op for op in walk.operations(module.operation) if op.name == CONSTRAINT]
    known = [device.exchanged.accounts_for(op) for op in operations]
    repeated = [device.exchanged.repeated_by(op) for op in operations]
    assert known == [True, False, True]
    [number] = repeated[0]
    assert device.exchanged.exchanges[number].kind in ("all-reduce", "reduce-scatter")


def test_values_before_several_constraints_are_examined_once(
    context: ir.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [f"%{n + 1} = stablehlo.tanh %{n} : tensor<8x8xf32>" for n in range(4)]
    behind = [
        f'%c{n} = sdy.sharding_constraint %{n} <@mesh, [{{"a"}}, {{}}]> : tensor<8x8xf32>'
        for n in (4, 2, 4, 3)
    ]
    behind = [line.replace("%c", f"%c{place}") for place, line in enumerate(behind)]
    module = ir.Module.parse(
        f"""{MESH}func.func @main(%x: tensor<8x8xf32> {SPLIT}) -> tensor<8x8xf32> {{
        {"  ".join(line.replace("%0", "%x") + chr(10) for line in (*steps, *behind))}
        return %c04 : tensor<8x8xf32>
        }}"""
    )
    examined: list[ir.Value] = []
    find = SplitSearch._find

    def counted(search: SplitSearch, value: ir.Value) -> object:
        examined.append(value)
        return find(search, value)

    monkeypatch.setattr(SplitSearch, "_find", counted)
    graph = Program.of(module)
    kinds = [
        kind for kind, name in zip(graph.kinds, graph.names, strict=True) if name == CONSTRAINT
    ]
    assert kinds == [OpKind.CHEAP] * 4
    assert len(examined) == 5  # four results and the argument


def test_what_a_loop_would_keep_is_forgotten_where_it_does_not(context: ir.Context) -> None:
    """A carry that an iteration splits otherwise says nothing of the values made from it."""
    module = ir.Module.parse(
        MESH
        + f"""func.func @main(%x: tensor<8x8xf32> {SPLIT}) -> tensor<8x8xf32> {{
        %n = stablehlo.constant dense<0> : tensor<i32>
        %0:2 = stablehlo.while(%i = %n, %c = %x) : tensor<i32>, tensor<8x8xf32>
        cond {{
          %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        }} do {{
          %s = stablehlo.tanh %c : tensor<8x8xf32>
          %t = stablehlo.transpose %s, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
          stablehlo.return %i, %t : tensor<i32>, tensor<8x8xf32>
        }}
        return %0#1 : tensor<8x8xf32>
        }}"""
    )
    loop = next(op for op in walk.operations(module.operation) if op.name == "stablehlo.while")
    body = loop.regions[1].blocks[0]
    tanh = next(op.operation for op in body.operations if op.operation.name == "stablehlo.tanh")
    search = SplitSearch()
    assert search.of(body.arguments[1]) is None
    assert search.of(tanh.results[0]) is None
