// A step as a forward and a backward function: what depends on the cotangent is the backward one.
// RUN: hloom-opt %s -p split -o %t && filecheck %s < %t
// Nothing else is found the second time.
// RUN: hloom-opt %t -p split -o %t.twice && hloom-opt %t.twice -p split | diff %t.twice -

// The weights are read again from the caller's array. What crosses is narrow, and made wide again.
// CHECK-LABEL: func.func public @main
// CHECK-NEXT:    %[[F:.*]]:2 = call @forward(%arg0, %arg1)
// CHECK-NEXT:    %[[B:.*]]:2 = call @backward(%arg0, %arg1, %[[F]]#1, %arg2)
// CHECK-NEXT:    return %[[F]]#0, %[[B]]#0, %[[B]]#1
// CHECK-LABEL: func.func private @forward
// CHECK-SAME:    (tensor<8x8xf64>, tensor<8x8xf32> {hloom.residual = "
// CHECK:         %[[D:.*]] = stablehlo.dot_general %arg1, %arg0
// CHECK-NEXT:    %[[T:.*]] = stablehlo.tanh %[[D]]
// CHECK-NEXT:    %[[W:.*]] = stablehlo.convert %[[T]]
// CHECK-NOT:     stablehlo.multiply
// CHECK:         return %[[W]], %[[T]]
// CHECK-LABEL: func.func private @backward
// CHECK-SAME:    %arg2: tensor<8x8xf32> {hloom.residual = "tanh
// CHECK-DAG:     %[[WIDE:.*]] = stablehlo.convert %arg2
// CHECK:         stablehlo.dot_general
// CHECK:         stablehlo.dot_general
// CHECK-NOT:     stablehlo.tanh
// CHECK:         return
func.func public @main(%w: tensor<8x8xf32>, %x: tensor<8x8xf32>,
                       %ct: tensor<8x8xf64> {hloom.cotangent})
    -> (tensor<8x8xf64>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.tanh %0 : tensor<8x8xf32>
  %2 = stablehlo.convert %1 : (tensor<8x8xf32>) -> tensor<8x8xf64>
  %3 = stablehlo.multiply %2, %2 : tensor<8x8xf64>
  %4 = stablehlo.multiply %ct, %3 : tensor<8x8xf64>
  %5 = stablehlo.convert %4 : (tensor<8x8xf64>) -> tensor<8x8xf32>
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %7 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2, %6, %7 : tensor<8x8xf64>, tensor<8x8xf32>, tensor<8x8xf32>
}
