// Parameters that are sharded along with the batch are gathered once, before the loop.
// RUN: hloom-opt %s -p "accumulate{microbatches=4 gather=once reduce=each}" | filecheck %s --check-prefixes=ALL,GATHERED
// RUN: hloom-opt %s -p "accumulate{microbatches=4 reduce=once}" | filecheck %s --check-prefixes=ALL,REDUCED
// RUN: hloom-opt %s -p "accumulate{microbatches=4 gather=each}" | filecheck %s --check-prefixes=ALL,EACH

sdy.mesh @mesh = <["d"=2]>

// ALL-LABEL: func.func public @main
// ALL-SAME: %[[W:[a-z0-9]*]]: tensor<16x4xf32> {{.*}}, %[[X:[a-z0-9]*]]: tensor<16x16xf32>
func.func public @main(%w: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, %x: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
  // GATHERED: %[[WHOLE:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{}, {}]>
  // GATHERED: stablehlo.while
  // GATHERED: stablehlo.dot_general %{{.*}}, %[[WHOLE]], {{.*}} -> tensor<4x4xf32>

  // Each device runs the loop on its part of the batch, and gets its rows of the sum.
  // REDUCED: sdy.manual_computation(%[[X]], %[[W]]) in_shardings=[<@mesh, [{"d"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{"d"}, {}]>]
  // REDUCED: stablehlo.while
  // REDUCED: stablehlo.dot_general %{{.*}}, %{{.*}}, {{.*}} -> tensor<2x4xf32>
  // REDUCED: "stablehlo.reduce_scatter"
  // REDUCED: -> tensor<8x4xf32>

  // EACH-NOT: sdy.sharding_constraint
  // EACH: stablehlo.while
  // EACH: stablehlo.dot_general %{{.*}}, %[[W]], {{.*}} -> tensor<4x4xf32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x16xf32>, tensor<16x4xf32>) -> tensor<16x4xf32> loc("jvp()/dot_general")
  %t = stablehlo.tanh %h : tensor<16x4xf32> loc("jvp()/tanh")
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<16x16xf32>, tensor<16x4xf32>) -> tensor<16x4xf32> loc("transpose(jvp())/dot_general")
  // ALL: %[[U:.*]] = stablehlo.subtract %[[W]]
  // ALL: return %[[U]]
  %u = stablehlo.subtract %w, %d : tensor<16x4xf32>
  return %u : tensor<16x4xf32>
}
