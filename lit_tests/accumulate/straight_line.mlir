// A step's gradients are accumulated over microbatches, and what is done with them stays behind.
// RUN: hloom-opt %s -p "accumulate{microbatches=4}" --split-input-file | filecheck %s

// The forward and the backward pass of a microbatch are in the loop; the update reads the sum.
// CHECK-LABEL: func.func public @step
// CHECK-SAME: %[[W:.*]]: tensor<16x4xf32>, %[[X:.*]]: tensor<8x16xf32>
func.func public @step(%w: tensor<16x4xf32>, %x: tensor<8x16xf32>) -> tensor<16x4xf32> {
  // CHECK: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %{{.*}} -> tensor<16x4xf32>
  // CHECK: %[[LOOP:.*]]:2 = stablehlo.while({{.*}}, %[[SUM:.*]] = %[[ZEROS]]) : tensor<i32>, tensor<16x4xf32>
  // CHECK: stablehlo.constant dense<4> : tensor<i32>
  // CHECK: %[[PART:.*]] = stablehlo.dynamic_slice %[[X]], {{.*}} -> tensor<2x16xf32>
  // CHECK: %[[H:.*]] = stablehlo.dot_general %[[PART]], %[[W]], {{.*}} -> tensor<2x4xf32>
  // CHECK: %[[T:.*]] = stablehlo.tanh %[[H]] : tensor<2x4xf32>
  // CHECK: %[[D:.*]] = stablehlo.dot_general %[[PART]], %[[T]], {{.*}} -> tensor<16x4xf32>
  // CHECK: %[[NEXT:.*]] = stablehlo.add %[[SUM]], %[[D]]
  // CHECK: stablehlo.return %{{.*}}, %[[NEXT]]
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("jvp()/dot_general")
  %t = stablehlo.tanh %h : tensor<8x4xf32> loc("jvp()/tanh")
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32> loc("transpose(jvp())/dot_general")
  // CHECK: %[[U:.*]] = stablehlo.subtract %[[W]], %[[LOOP]]#1
  // CHECK: return %[[U]]
  %u = stablehlo.subtract %w, %d : tensor<16x4xf32>
  return %u : tensor<16x4xf32>
}

// -----

// Gradients in bfloat16 are accumulated in float32, and rounded once.
// CHECK-LABEL: func.func public @narrow
func.func public @narrow(%w: tensor<16x4xbf16>, %x: tensor<8x16xbf16>) -> tensor<16x4xbf16> {
  // CHECK: %[[LOOP:.*]]:2 = stablehlo.while{{.*}} : tensor<i32>, tensor<16x4xf32>
  // CHECK: %[[D:.*]] = stablehlo.dot_general {{.*}} -> tensor<16x4xbf16>
  // CHECK: %[[TERM:.*]] = stablehlo.convert %[[D]] : (tensor<16x4xbf16>) -> tensor<16x4xf32>
  // CHECK: stablehlo.add %{{.*}}, %[[TERM]] : tensor<16x4xf32>
  // CHECK: %[[ROUNDED:.*]] = stablehlo.convert %[[LOOP]]#1 : (tensor<16x4xf32>) -> tensor<16x4xbf16>
  // CHECK: return %[[ROUNDED]]
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xbf16>, tensor<16x4xbf16>) -> tensor<8x4xbf16> loc("jvp()/dot_general")
  %t = stablehlo.tanh %h : tensor<8x4xbf16> loc("jvp()/tanh")
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<8x16xbf16>, tensor<8x4xbf16>) -> tensor<16x4xbf16> loc("transpose(jvp())/dot_general")
  return %d : tensor<16x4xbf16>
}

// -----

// What each example gives is put together again: the predictions, by the way.
// CHECK-LABEL: func.func public @predictions
func.func public @predictions(%w: tensor<16x4xf32>, %x: tensor<8x16xf32>) -> (tensor<16x4xf32>, tensor<8x4xf32>) {
  // CHECK: %[[LOOP:.*]]:3 = stablehlo.while{{.*}} : tensor<i32>, tensor<{{.*}}xf32>, tensor<{{.*}}xf32>
  // CHECK: stablehlo.dynamic_update_slice
  // CHECK: return %{{.*}}, %{{.*}} : tensor<16x4xf32>, tensor<8x4xf32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("jvp()/dot_general")
  %t = stablehlo.tanh %h : tensor<8x4xf32> loc("jvp()/tanh")
  %d = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32> loc("transpose(jvp())/dot_general")
  return %d, %h : tensor<16x4xf32>, tensor<8x4xf32>
}
