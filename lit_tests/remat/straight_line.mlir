// What a straight-line block recomputes for its backward pass, and where.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" --split-input-file | filecheck %s

// Two cheap values of one product: both are cloned behind one barrier with the gradient, right
// before its first reader; the gradient's readers take it from the barrier.
// CHECK-LABEL: func.func public @both_behind_one_barrier
func.func public @both_behind_one_barrier(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  // CHECK: %[[H:.*]] = stablehlo.dot_general %arg0, %arg1
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  // CHECK: %[[G:.*]] = stablehlo.dot_general %arg2, %{{.*}}
  // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[G]]
  // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[B]]#0
  %1 = stablehlo.tanh %0 : tensor<8x8xf32> loc("jvp()/tanh")
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  // CHECK-NEXT: %[[C:.*]] = stablehlo.cosine %[[B]]#0
  %3 = stablehlo.cosine %0 : tensor<8x8xf32> loc("jvp()/cos")
  %4 = stablehlo.dot_general %g, %2, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[B]]#1, %[[T]]
  %5 = stablehlo.multiply %4, %1 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: %[[N:.*]] = stablehlo.multiply %[[M]], %[[C]]
  %6 = stablehlo.multiply %5, %3 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: return %[[N]]
  return %6 : tensor<8x8xf32>
}

// -----

// A constant and a splat that the clone needs are cloned beside it and do not pass the barrier.
// CHECK-LABEL: func.func public @constants_stay_outside
func.func public @constants_stay_outside(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<f32>) {
  // CHECK: %[[H:.*]] = stablehlo.dot_general %arg0, %arg1
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  // CHECK: %[[G:.*]] = stablehlo.dot_general %arg2, %arg1
  // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[G]]
  // CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant dense<1.000000e+00>
  %one = stablehlo.constant dense<1.0> : tensor<f32> loc("jvp()/one")
  // CHECK-NEXT: %[[ONES:.*]] = stablehlo.broadcast_in_dim %[[ONE]]
  %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> tensor<8x8xf32> loc("jvp()/ones")
  // CHECK-NEXT: %[[S:.*]] = stablehlo.add %[[B]]#0, %[[ONES]]
  %1 = stablehlo.add %0, %ones : tensor<8x8xf32> loc("jvp()/add")
  // CHECK-NEXT: %[[L:.*]] = stablehlo.log %[[S]]
  %2 = stablehlo.log %1 : tensor<8x8xf32> loc("jvp()/log")
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %loss = stablehlo.dot_general %3, %3, contracting_dims = [0, 1] x [0, 1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32> loc("jvp()/loss")
  %4 = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %2 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: stablehlo.multiply %[[B]]#1, %[[L]]
  %6 = stablehlo.multiply %5, %0 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  return %6, %loss : tensor<8x8xf32>, tensor<f32>
}

// -----

// The gradient that holds the clone back is the one in memory, not its broadcast: a barrier would
// force the broadcast to memory. The clone is put where that gradient is read.
// CHECK-LABEL: func.func public @held_by_what_is_in_memory
func.func public @held_by_what_is_in_memory(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<f32>) {
  // CHECK: %[[H:.*]] = stablehlo.dot_general %arg0, %arg1
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %1 = stablehlo.exponential %0 : tensor<8x8xf32> loc("jvp()/exp")
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %loss = stablehlo.dot_general %2, %2, contracting_dims = [0, 1] x [0, 1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<f32> loc("jvp()/loss")
  %zero = stablehlo.constant dense<0.0> : tensor<f32> loc("transpose(jvp())/zero")
  // CHECK: %[[R:.*]] = stablehlo.reduce
  %3 = stablehlo.reduce(%g init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32> loc("transpose(jvp())/sum")
  // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[R]]
  // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[B]]#0
  // CHECK-NEXT: %[[W:.*]] = stablehlo.broadcast_in_dim %[[B]]#1
  %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/broadcast")
  %5 = stablehlo.multiply %4, %1 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[W]], %[[E]]
  %6 = stablehlo.multiply %5, %0 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  return %6, %loss : tensor<8x8xf32>, tensor<f32>
}

// -----

// A reduction's small result is kept: computing it again would read all of its operand again.
// CHECK-LABEL: func.func public @small_reductions_are_kept
func.func public @small_reductions_are_kept(%x: tensor<8x64xf32>, %w: tensor<64x64xf32>, %g: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<f32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32> loc("jvp()/low")
  // CHECK: %[[MAX:.*]] = stablehlo.reduce
  %1 = stablehlo.reduce(%0 init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32> loc("jvp()/max")
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32> loc("jvp()/broadcast")
  %3 = stablehlo.subtract %0, %2 : tensor<8x64xf32> loc("jvp()/sub")
  %4 = stablehlo.exponential %3 : tensor<8x64xf32> loc("jvp()/exp")
  %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  %loss = stablehlo.dot_general %5, %5, contracting_dims = [0, 1] x [0, 1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<f32> loc("jvp()/loss")
  %6 = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %7 = stablehlo.multiply %6, %4 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %8 = stablehlo.multiply %7, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  // CHECK: stablehlo.optimization_barrier %{{.*}}, %[[MAX]], %{{.*}}
  // CHECK-NOT: stablehlo.reduce
  // CHECK: return
  return %8, %loss : tensor<8x64xf32>, tensor<f32>
}

// -----

// No name tells what the backward pass is. What is alive across the border is recomputed behind it.
// CHECK-LABEL: func.func public @no_names
func.func public @no_names(%x: tensor<64x64xf32>, %g: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<f32>) {
  // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %arg0
  %0 = stablehlo.tanh %x : tensor<64x64xf32>
  // CHECK-NEXT: stablehlo.dot_general %[[T]], %[[T]]
  %loss = stablehlo.dot_general %0, %0, contracting_dims = [0, 1] x [0, 1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<f32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %arg0
  // CHECK-NEXT: %[[C:.*]] = stablehlo.tanh %[[B]]
  // CHECK-NEXT: stablehlo.multiply %arg1, %[[C]]
  %1 = stablehlo.multiply %g, %0 : tensor<64x64xf32>
  return %1, %loss : tensor<64x64xf32>, tensor<f32>
}
