// What is not accumulated is left as it is, and told with the operation and the user's line.
// RUN: hloom-opt %s -p "accumulate{microbatches=2}" --split-input-file -o %t 2>&1 | filecheck %s

// A statistic of the batch.
// CHECK: warning: {{.*}}it takes 2 loops over the microbatches, and phases=1 allows one: subtract (jvp()/sub, model.py:7) reads the whole of a partial sum
func.func public @statistic(%w: tensor<16x4xf32>, %x: tensor<8x16xf32>) -> tensor<16x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("jvp()/dot_general")
  %s = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32> loc("jvp()/reduce_sum")
  %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32> loc("jvp()/broadcast_in_dim")
  %c = stablehlo.subtract %h, %b : tensor<8x4xf32> loc("jvp()/sub"("model.py":7:3))
  %t = stablehlo.tanh %c : tensor<8x4xf32> loc("jvp()/tanh")
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32> loc("transpose(jvp())/dot_general")
  return %d : tensor<16x4xf32>
}

// CHECK-NOT: {{error|warning}}:
