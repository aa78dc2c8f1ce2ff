// Gradients of weights apart: each product of the backward pass is in one of two functions, and of a
// loop of both there are two.
// RUN: hloom-opt %s --split-input-file -p split -o %t && filecheck %s < %t

// The cotangent of the product crosses. Of a barrier each function has what it reads.
// CHECK-LABEL: func.func public @main
// CHECK-NEXT:    %[[F:.*]]:2 = call @forward(%arg0, %arg1)
// CHECK-NEXT:    %[[X:.*]]:2 = call @backward_x(%arg0, %[[F]]#1, %arg2)
// CHECK-NEXT:    %[[W:.*]] = call @backward_w(%arg1, %[[X]]#1)
// CHECK-NEXT:    return %[[F]]#0, %[[W]], %[[X]]#0
// CHECK-LABEL: func.func private @backward_x
// CHECK:         %[[G:.*]] = stablehlo.multiply
// CHECK:         %[[B:.*]] = stablehlo.optimization_barrier %[[G]]
// CHECK:         stablehlo.dot_general %[[B]], %arg0
// CHECK-NOT:     stablehlo.dot_general
// CHECK:         return %{{.*}}, %[[B]]
// CHECK-LABEL: func.func private @backward_w
// CHECK-SAME:    %arg1: tensor<8x8xf32> {hloom.residual = "optimization_barrier
// CHECK-NEXT:    %[[A:.*]] = stablehlo.optimization_barrier %arg0 : tensor<8x8xf32>
// CHECK-NEXT:    %[[D:.*]] = stablehlo.dot_general %[[A]], %arg1
// CHECK-NEXT:    return %[[D]]
func.func public @main(%w: tensor<8x8xf32>, %x: tensor<8x8xf32>,
                       %ct: tensor<8x8xf32> {hloom.cotangent})
    -> (tensor<8x8xf32>, tensor<8x8xf32> {hloom.weight_gradient}, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.sine %0 : tensor<8x8xf32>
  %2 = stablehlo.cosine %0 : tensor<8x8xf32>
  %3 = stablehlo.multiply %ct, %2 : tensor<8x8xf32>
  %4:2 = stablehlo.optimization_barrier %3, %x : tensor<8x8xf32>, tensor<8x8xf32>
  %5 = stablehlo.dot_general %4#1, %4#0, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %6 = stablehlo.dot_general %4#0, %w, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1, %5, %6 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// The first loop has the gradient go from an iteration to the next, and stacks it for the second.
// CHECK-LABEL: func.func private @backward_x
// CHECK:         stablehlo.while
// CHECK:           stablehlo.dot_general
// CHECK-NOT:       stablehlo.dot_general
// CHECK:           stablehlo.dynamic_update_slice
// CHECK-LABEL: func.func private @backward_w
// CHECK:         stablehlo.while
// CHECK:           %[[S:.*]] = stablehlo.dynamic_slice
// CHECK:           %[[R:.*]] = stablehlo.reshape %[[S]]
// CHECK:           %[[D:.*]] = stablehlo.dot_general %{{.*}}, %[[R]]
// CHECK:           stablehlo.add %{{.*}}, %[[D]]
func.func public @main(%w: tensor<8x8xf32>, %x: tensor<8x8xf32>,
                       %ct: tensor<8x8xf32> {hloom.cotangent})
    -> (tensor<8x8xf32>, tensor<8x8xf32> {hloom.weight_gradient}, tensor<8x8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %sum = stablehlo.constant dense<0.0> : tensor<8x8xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1:5 = stablehlo.while(%i = %zero, %g = %ct, %s = %sum, %ww = %w, %xx = %x) : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.dot_general %g, %ww, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.dot_general %xx, %g, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %4 = stablehlo.add %s, %3 : tensor<8x8xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %2, %4, %ww, %xx : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  return %0, %1#2, %1#1 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
