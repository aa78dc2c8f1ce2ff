// What drop-constraints leaves as it is.
// RUN: hloom-opt %s --split-input-file -o %t && hloom-opt %s -p drop-constraints --split-input-file | diff %t -

sdy.mesh @mesh = <["d"=2, "e"=2]>

// It gathers, and what follows it is gathered because of it.
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
  %0 = stablehlo.tanh %x : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<8x4xf32>
  %2 = stablehlo.sine %1 : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2]>

// Nobody else says that it is split.
func.func public @main(%x: tensor<8x4xf32>) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.tanh %x : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"d"}, {}]> : tensor<8x4xf32>
  %2 = stablehlo.sine %1 : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2]>

// The result of the program would be split, too.
func.func public @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{}, {"e"}]> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2]>
sdy.mesh @other = <["d"=2, "e"=2], device_ids=[0, 2, 1, 3]>

// The devices lie in another order.
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
  %0 = sdy.sharding_constraint %x <@other, [{"d"}, {}]> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

sdy.mesh @second = <[], device_ids=[1]>

// All of it on one device of four.
func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %x <@second, []> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2]>

// A product that devices sum: another one reads it, so remat has to know.
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>},
    %w: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}]>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<8x4xf32>
  %2 = stablehlo.tanh %1 : tensor<8x4xf32>
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2]>

// What stands in a function that is called is not placed by its caller alone.
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
  %0 = func.call @called(%x) {mhlo.frontend_attributes = {inlineable = "false"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @called(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"d"}, {}]> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
