// Under a bound products are done again, the cheapest that hold it; none is done twice without one.
// RUN: hloom-opt %s -p "split{residuals=256B}" -o %t && filecheck %s < %t
// RUN: hloom-opt %s -p split -o %t.free && filecheck %s --check-prefix=FREE < %t.free

// CHECK-LABEL: func.func private @forward
// CHECK-SAME:    -> (tensor<8x8xf32>, tensor<8x8xf32> {hloom.residual = "tanh {{[^"]*}}"}) {
// CHECK-LABEL: func.func private @backward
// CHECK-SAME:    %[[V:arg[0-9]]]: tensor<8x8xf32>, %{{.*}}: tensor<8x4096xf32>, %[[A:arg[0-9]]]: tensor<8x8xf32> {hloom.residual
// CHECK-NEXT:    %[[D:.*]] = stablehlo.dot_general %[[A]], %[[V]]
// CHECK-NEXT:    stablehlo.tanh %[[D]]
// FREE-LABEL:  func.func private @forward
// FREE-SAME:     -> (tensor<8x8xf32>, tensor<8x8xf32> {hloom.residual = "{{[^"]*}}"}, tensor<8x8xf32> {hloom.residual =
// FREE-LABEL:  func.func private @backward
// FREE-NOT:      stablehlo.tanh
func.func public @main(%w: tensor<8x4096xf32>, %v: tensor<8x8xf32>, %x: tensor<8x4096xf32>,
                       %ct: tensor<8x8xf32> {hloom.cotangent})
    -> (tensor<8x8xf32>, tensor<8x4096xf32>, tensor<8x8xf32>) {
  // The dear product: its result is kept.
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<8x4096xf32>, tensor<8x4096xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.tanh %0 : tensor<8x8xf32>
  // The cheap one is done again.
  %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = stablehlo.tanh %2 : tensor<8x8xf32>
  %4 = stablehlo.multiply %ct, %3 : tensor<8x8xf32>
  %5 = stablehlo.dot_general %1, %4, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %6 = stablehlo.dot_general %4, %v, contracting_dims = [1] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %7 = stablehlo.dot_general %6, %x, contracting_dims = [0] x [0] : (tensor<8x8xf32>, tensor<8x4096xf32>) -> tensor<8x4096xf32>
  return %3, %7, %5 : tensor<8x8xf32>, tensor<8x4096xf32>, tensor<8x8xf32>
}
