// Programs that accumulate leaves as they are, without a word: none has a gradient.
// RUN: hloom-opt %s -p inline -o %t && hloom-opt %s -p "accumulate{microbatches=2}" | diff %t -
// RUN: hloom-opt %s -p "accumulate{microbatches=2 args=batch}" | diff %t -
// One microbatch is the batch.
// RUN: hloom-opt %s -p "accumulate{microbatches=1}" | diff %t -

// A forward pass.
func.func public @main(%w: tensor<16x4xf32>, %x: tensor<8x16xf32>) -> tensor<8x4xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("dot_general")
  %t = stablehlo.tanh %h : tensor<8x4xf32> loc("tanh")
  return %t : tensor<8x4xf32>
}
