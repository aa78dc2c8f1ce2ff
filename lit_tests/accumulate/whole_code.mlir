// Code that works on what does not depend on the batch is done once, outside of the microbatches.
// RUN: hloom-opt %s -p "accumulate{microbatches=4}" --split-input-file | filecheck %s

// A checkpoint's barrier has the weight beside the data: what it passes on is the weight, and the
// loop that works on it stays outside. In the loop over microbatches the barrier has the data alone.
// CHECK-LABEL: func.func public @barrier
// CHECK-SAME: %[[W:.*]]: tensor<4x4xf32>, %[[X:.*]]: tensor<64x4xf32>
func.func public @barrier(%w: tensor<4x4xf32>, %x: tensor<64x4xf32>) -> tensor<4x4xf32> {
  // CHECK: %[[S:.*]]:2 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[W]]) : tensor<i32>, tensor<4x4xf32>
  // CHECK: stablehlo.while
  // CHECK: %[[PART:.*]] = stablehlo.dynamic_slice %[[X]]
  // CHECK: stablehlo.optimization_barrier %[[PART]] : tensor<16x4xf32>
  // CHECK: stablehlo.dot_general %{{.*}}, %[[S]]#1, {{.*}} -> tensor<16x4xf32>
  // CHECK-NOT: stablehlo.while
  // CHECK: return
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %b:2 = stablehlo.optimization_barrier %x, %w : tensor<64x4xf32>, tensor<4x4xf32>
  %s:2 = stablehlo.while(%i = %zero, %v = %b#1) : tensor<i32>, tensor<4x4xf32>
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %less = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %tanh = stablehlo.tanh %v : tensor<4x4xf32>
      stablehlo.return %next, %tanh : tensor<i32>, tensor<4x4xf32>
    }
  %h = stablehlo.dot_general %b#0, %s#1, contracting_dims = [1] x [0] : (tensor<64x4xf32>, tensor<4x4xf32>) -> tensor<64x4xf32> loc("jvp()/dot_general")
  %d = stablehlo.dot_general %x, %h, contracting_dims = [0] x [0] : (tensor<64x4xf32>, tensor<64x4xf32>) -> tensor<4x4xf32> loc("transpose(jvp())/dot_general")
  return %d : tensor<4x4xf32>
}

// -----

// A loop over layers carries a vector beside the data, and the largest of it scales the data behind
// it. The counter and the vector go through a loop of their own before, without the data.
// CHECK-LABEL: func.func public @carried
// CHECK-SAME: %[[W:.*]]: tensor<4x4xf32>, %[[X:.*]]: tensor<64x4xf32>, %[[K:.*]]: tensor<4xf32>
func.func public @carried(%w: tensor<4x4xf32>, %x: tensor<64x4xf32>, %k: tensor<4xf32>) -> tensor<4x4xf32> {
  // CHECK: %[[OWN:.*]]:2 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[K]]) : tensor<i32>, tensor<4xf32>
  // CHECK-NOT: dot_general
  // CHECK: %[[LAST:.*]] = "stablehlo.sort"(%[[OWN]]#1)
  // CHECK: stablehlo.while{{.*}} : tensor<i32>, tensor<4x4xf32>
  // CHECK: stablehlo.while{{.*}} : tensor<i32>, tensor<16x4xf32>, tensor<4xf32>
  // CHECK: stablehlo.broadcast_in_dim %[[LAST]]
  // CHECK: return
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %s:3 = stablehlo.while(%i = %zero, %h = %x, %v = %k) : tensor<i32>, tensor<64x4xf32>, tensor<4xf32>
    cond {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %less = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %tanh = stablehlo.tanh %v : tensor<4xf32>
      %layer = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<64x4xf32>, tensor<4x4xf32>) -> tensor<64x4xf32> loc("jvp()/dot_general")
      stablehlo.return %next, %layer, %tanh : tensor<i32>, tensor<64x4xf32>, tensor<4xf32>
    }
  %last = "stablehlo.sort"(%s#2) <{dimension = 0 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  %spread = stablehlo.broadcast_in_dim %last, dims = [1] : (tensor<4xf32>) -> tensor<64x4xf32>
  %scaled = stablehlo.multiply %s#1, %spread : tensor<64x4xf32>
  %d = stablehlo.dot_general %x, %scaled, contracting_dims = [0] x [0] : (tensor<64x4xf32>, tensor<64x4xf32>) -> tensor<4x4xf32> loc("transpose(jvp())/dot_general")
  return %d : tensor<4x4xf32>
}
