"""The steps of a ragged all-to-all by XLA's dense collectives, as StableHLO functions in text."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.ir.marks import Groups, dense


@dataclass(frozen=True)
class Tensor:
    """A tensor type: its shape, and its element type as MLIR spells it."""

    shape: tuple[int, ...]
    element: str

    @classmethod
    def of(cls, value: ir.Value) -> Tensor:
        """The type of a value, which is a ranked tensor."""
        type_ = ir.RankedTensorType(value.type)
        return cls(tuple(type_.shape), str(type_.element_type))

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.element])}>"


def places(offsets: Tensor) -> str:
    """Writes `(input offsets, output offsets) -> places`: a row for each slice, in 64 bits."""
    [k] = offsets.shape
    return f"""
func.func @places(%reads: {offsets}, %writes: {offsets}) -> tensor<{k}x2xi64> {{
  %read = stablehlo.convert %reads : ({offsets}) -> tensor<{k}xi64>
  %write = stablehlo.convert %writes : ({offsets}) -> tensor<{k}xi64>
  %read_column = stablehlo.reshape %read : (tensor<{k}xi64>) -> tensor<{k}x1xi64>
  %write_column = stablehlo.reshape %write : (tensor<{k}xi64>) -> tensor<{k}x1xi64>
  %places = stablehlo.concatenate %read_column, %write_column, dim = 1
      : (tensor<{k}x1xi64>, tensor<{k}x1xi64>) -> tensor<{k}x2xi64>
  return %places : tensor<{k}x2xi64>
}}"""


def exchanged_places(offsets: Tensor, groups: Groups) -> str:
    """Writes `(places of what I send) -> places of what I get`."""
    [k] = offsets.shape
    return f"""
func.func @exchanged_places(%places: tensor<{k}x2xi64>) -> tensor<{k}x2xi64> {{
  %starts = "stablehlo.all_to_all"(%places) {{split_dimension = 0 : i64,
      concat_dimension = 0 : i64, split_count = {len(groups[0])} : i64, {_meeting(groups)}}}
      : (tensor<{k}x2xi64>) -> tensor<{k}x2xi64>
  return %starts : tensor<{k}x2xi64>
}}"""


def every_row_exchanged(operand: Tensor, groups: Groups) -> str:
    """Writes `(operand) -> the rows of all`, in the order of the group; every device waits for
    all."""
    devices = len(groups[0])
    every = _every(operand, devices)
    repeated = Tensor((devices, *operand.shape), operand.element)
    return f"""
func.func @every_row(%operand: {operand}) -> {every} {{
  %repeated = stablehlo.broadcast_in_dim %operand,
      dims = {list(range(1, len(repeated.shape)))} : ({operand}) -> {repeated}
  %sent = stablehlo.reshape %repeated : ({repeated}) -> {every}
  %every = "stablehlo.all_to_all"(%sent) {{split_dimension = 0 : i64, concat_dimension = 0 : i64,
      split_count = {devices} : i64, {_meeting(groups)}}} : ({every}) -> {every}
  return %every : {every}
}}"""


def every_row_gathered(operand: Tensor, groups: Groups) -> str:
    """Writes `(operand) -> the rows of all`, in the order of the group."""
    every = _every(operand, len(groups[0]))
    return f"""
func.func @every_row(%operand: {operand}) -> {every} {{
  %every = "stablehlo.all_gather"(%operand) {{all_gather_dim = 0 : i64, use_global_device_ids,
      {_meeting(groups)}}} : ({operand}) -> {every}
  return %every : {every}
}}"""


def picked(operand: Tensor, output: Tensor, offsets: Tensor, devices: int) -> str:
    """Writes `(places of what I get, recv sizes, the rows of all, output) -> result`.

    Where slices overlap, the later one wins, as in the loop of JAX's documentation.
    """
    every = _every(operand, devices)
    [k] = offsets.shape
    n, m = operand.shape[0], output.shape[0]
    column, vector, rows, grid = (f"tensor<{s}xi64>" for s in (f"{k}x1", k, m, f"{m}x{k}"))
    mask = Tensor(output.shape, "i1")
    # The first row of each slice's sender among the rows of all.
    first_rows = [index // (k // devices) * n for index in range(k)]
    return f"""
func.func @picked(
    %starts: tensor<{k}x2xi64>, %recv_sizes: {offsets}, %every: {every}, %output: {output}
) -> {output} {{
  %read_column = stablehlo.slice %starts [0:{k}, 0:1] : (tensor<{k}x2xi64>) -> {column}
  %begin_column = stablehlo.slice %starts [0:{k}, 1:2] : (tensor<{k}x2xi64>) -> {column}
  %read = stablehlo.reshape %read_column : ({column}) -> {vector}
  %begin = stablehlo.reshape %begin_column : ({column}) -> {vector}
  %size = stablehlo.convert %recv_sizes : ({offsets}) -> {vector}
  %end = stablehlo.add %begin, %size : {vector}
  %first_row = stablehlo.constant dense<{first_rows}> : {vector}
  %sender_row = stablehlo.add %first_row, %read : {vector}
  %shift = stablehlo.subtract %sender_row, %begin : {vector}

  // The last slice that each row belongs to, or -1.
  %row = stablehlo.iota dim = 0 : {grid}
  %begins = stablehlo.broadcast_in_dim %begin, dims = [1] : ({vector}) -> {grid}
  %ends = stablehlo.broadcast_in_dim %end, dims = [1] : ({vector}) -> {grid}
  %is_after = stablehlo.compare GE, %row, %begins : ({grid}, {grid}) -> tensor<{m}x{k}xi1>
  %is_before = stablehlo.compare LT, %row, %ends : ({grid}, {grid}) -> tensor<{m}x{k}xi1>
  %is_inside = stablehlo.and %is_after, %is_before : tensor<{m}x{k}xi1>
  %slice = stablehlo.iota dim = 1 : {grid}
  %minus_one = stablehlo.constant dense<-1> : tensor<i64>
  %no_slice = stablehlo.constant dense<-1> : {grid}
  %candidate = stablehlo.select %is_inside, %slice, %no_slice : tensor<{m}x{k}xi1>, {grid}
  %last = stablehlo.reduce(%candidate init: %minus_one) applies stablehlo.maximum
      across dimensions = [1] : ({grid}, tensor<i64>) -> {rows}

  // The row of all that it gets.
  %lasts = stablehlo.broadcast_in_dim %last, dims = [0] : ({rows}) -> {grid}
  %is_last = stablehlo.compare EQ, %slice, %lasts : ({grid}, {grid}) -> tensor<{m}x{k}xi1>
  %shifts = stablehlo.broadcast_in_dim %shift, dims = [1] : ({vector}) -> {grid}
  %shifted = stablehlo.add %row, %shifts : {grid}
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %nothing = stablehlo.constant dense<0> : {grid}
  %chosen = stablehlo.select %is_last, %shifted, %nothing : tensor<{m}x{k}xi1>, {grid}
  %source = stablehlo.reduce(%chosen init: %zero) applies stablehlo.add
      across dimensions = [1] : ({grid}, tensor<i64>) -> {rows}
  %source_column = stablehlo.reshape %source : ({rows}) -> tensor<{m}x1xi64>
  %received = "stablehlo.gather"(%every, %source_column) {{
      dimension_numbers = #stablehlo.gather<offset_dims = {list(range(1, len(output.shape)))},
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: {", ".join(map(str, (1, *output.shape[1:])))}>
      }} : ({every}, tensor<{m}x1xi64>) -> {output}

  %minus_ones = stablehlo.constant dense<-1> : {rows}
  %is_received = stablehlo.compare GT, %last, %minus_ones : ({rows}, {rows}) -> tensor<{m}xi1>
  %mask = stablehlo.broadcast_in_dim %is_received, dims = [0] : (tensor<{m}xi1>) -> {mask}
  %result = stablehlo.select %mask, %received, %output : {mask}, {output}
  return %result : {output}
}}"""


_WIDER = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8", "f4E2M1FN": "f32"}
"""By element types below a byte, a type that holds all their values."""


def widened(values: Tensor) -> str:
    """Writes `(values) -> the same values`, in a type of a byte or more."""
    return converted(values, _WIDER.get(values.element, values.element))


def converted(values: Tensor, element: str) -> str:
    """Writes `(values) -> values` of another element type."""
    result = Tensor(values.shape, element)
    return f"""
func.func @converted(%values: {values}) -> {result} {{
  %result = stablehlo.convert %values : ({values}) -> {result}
  return %result : {result}
}}"""


def _every(operand: Tensor, devices: int) -> Tensor:
    return Tensor((devices * operand.shape[0], *operand.shape[1:]), operand.element)


def _meeting(groups: Groups) -> str:
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
    return f"{channel}, replica_groups = {dense(groups)}"
