// What a straight-line block recomputes for its backward pass, and where.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" --split-input-file | filecheck %s

// Two cheap values of one product: both are cloned behind one barrier with the gradient, right
// before its first reader; the gradient's readers take it from the barrier.
// CHECK-LABEL: func.func public @both_behind_one_barrier
// CHECK:         %[[H:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK:         %[[G:.*]] = stablehlo.dot_general %arg2, %{{.*}}
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[G]]
// CHECK-NEXT:    %[[T:.*]] = stablehlo.tanh %[[B]]#0
// CHECK-NEXT:    %[[C:.*]] = stablehlo.cosine %[[B]]#0
// CHECK-NEXT:    %[[M:.*]] = stablehlo.multiply %[[B]]#1, %[[T]]
// CHECK-NEXT:    %[[N:.*]] = stablehlo.multiply %[[M]], %[[C]]
// CHECK-NEXT:    return %[[N]]
func.func public @both_behind_one_barrier(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %1 = stablehlo.tanh %0 : tensor<8x8xf32> loc("jvp()/tanh")
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %3 = stablehlo.cosine %0 : tensor<8x8xf32> loc("jvp()/cos")
  %4 = stablehlo.dot_general %g, %2, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %1 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.multiply %5, %3 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  return %6 : tensor<8x8xf32>
}

// -----

// A constant and a splat that the clone needs are cloned beside it and do not pass the barrier.
// CHECK-LABEL: func.func public @constants_stay_outside
// CHECK:         %[[H:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK:         %[[G:.*]] = stablehlo.dot_general %arg2, %arg1
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[G]]
// CHECK-NEXT:    %[[ONE:.*]] = stablehlo.constant dense<1.000000e+00>
// CHECK-NEXT:    %[[ONES:.*]] = stablehlo.broadcast_in_dim %[[ONE]]
// CHECK-NEXT:    %[[S:.*]] = stablehlo.add %[[B]]#0, %[[ONES]]
// CHECK-NEXT:    %[[L:.*]] = stablehlo.log %[[S]]
// CHECK-NEXT:    stablehlo.multiply %[[B]]#1, %[[L]]
func.func public @constants_stay_outside(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %one = stablehlo.constant dense<1.0> : tensor<f32> loc("jvp()/one")
  %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> tensor<8x8xf32> loc("jvp()/ones")
  %1 = stablehlo.add %0, %ones : tensor<8x8xf32> loc("jvp()/add")
  %2 = stablehlo.log %1 : tensor<8x8xf32> loc("jvp()/log")
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %2 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.multiply %5, %0 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  return %6, %3 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// The gradient that holds the clone back is the one in memory, not its broadcast: a barrier would
// force the broadcast to memory. The clone stands where that gradient is read.
// CHECK-LABEL: func.func public @held_by_what_is_in_memory
// CHECK:         %[[H:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK:         %[[R:.*]] = stablehlo.reduce
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier %[[H]], %[[R]]
// CHECK-NEXT:    %[[E:.*]] = stablehlo.exponential %[[B]]#0
// CHECK-NEXT:    %[[W:.*]] = stablehlo.broadcast_in_dim %[[B]]#1
// CHECK-NEXT:    %[[M:.*]] = stablehlo.multiply %[[W]], %[[E]]
func.func public @held_by_what_is_in_memory(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %1 = stablehlo.exponential %0 : tensor<8x8xf32> loc("jvp()/exp")
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %zero = stablehlo.constant dense<0.0> : tensor<f32> loc("transpose(jvp())/zero")
  %3 = stablehlo.reduce(%g init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32> loc("transpose(jvp())/sum")
  %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/broadcast")
  %5 = stablehlo.multiply %4, %1 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.multiply %5, %0 : tensor<8x8xf32> loc("transpose(jvp())/mul")
  return %6, %2 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// A reduction's small result is kept: computing it again would read all of its operand again.
// CHECK-LABEL: func.func public @small_reductions_are_kept
// CHECK:         %[[MAX:.*]] = stablehlo.reduce
// CHECK:         stablehlo.optimization_barrier %{{.*}}, %[[MAX]], %{{.*}}
// CHECK-NOT:     stablehlo.reduce
// CHECK:         return
func.func public @small_reductions_are_kept(%x: tensor<8x64xf32>, %w: tensor<64x64xf32>, %g: tensor<8x64xf32>) -> (tensor<8x64xf32>, tensor<8x64xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32> loc("jvp()/low")
  %1 = stablehlo.reduce(%0 init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<8x64xf32>, tensor<f32>) -> tensor<8xf32> loc("jvp()/max")
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32> loc("jvp()/broadcast")
  %3 = stablehlo.subtract %0, %2 : tensor<8x64xf32> loc("jvp()/sub")
  %4 = stablehlo.exponential %3 : tensor<8x64xf32> loc("jvp()/exp")
  %5 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("jvp()/dot")
  %6 = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %7 = stablehlo.multiply %6, %4 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %8 = stablehlo.multiply %7, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  return %8, %5 : tensor<8x64xf32>, tensor<8x64xf32>
}
