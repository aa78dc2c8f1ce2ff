// What is told without locations says why it names no lines, and is told all the same.
// RUN: hloom-opt %s -p "accumulate{microbatches=2}" -o /dev/null 2>&1 | filecheck %s

// CHECK: warning: accumulate: {{.*}}it takes 2 loops over the microbatches
// CHECK: note: the module has no locations, so that no line of a program is named: as_text(debug_info=True) keeps them
func.func public @statistic(%w: tensor<16x4xf32>, %x: tensor<8x16xf32>) -> tensor<16x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
  %c = stablehlo.subtract %h, %b : tensor<8x4xf32>
  %t = stablehlo.tanh %c : tensor<8x4xf32>
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  return %d : tensor<16x4xf32>
}
