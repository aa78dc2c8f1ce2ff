// What a scan stores, and what its backward body computes again, to hold a budget.
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=20KiB}" | filecheck %s
// The stack of products fits in this one.
// RUN: hloom-opt %s --debug-info -o %t && \
// RUN:   hloom-opt %s -p "remat{min_bytes=0 budget=64KiB}" --debug-info | diff %t -
// Twice is once.
// RUN: hloom-opt %s -p "remat{min_bytes=0 budget=20KiB}" --debug-info -o %t && \
// RUN:   hloom-opt %t -p "remat{min_bytes=0 budget=20KiB}" --debug-info | diff %t -

// The loop stacks its carry, an eighth of the product, and the backward body makes the product
// of it.
// CHECK-LABEL: func.func public @the_carry_is_stored_not_the_product
func.func public @the_carry_is_stored_not_the_product(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %last = stablehlo.constant dense<15> : tensor<i32>
  %trips = stablehlo.constant dense<16> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = []
  // CHECK-SAME: : (tensor<f32>) -> tensor<16x8x8xf32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<16x8x64xf32>
  // CHECK-NEXT: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[C:.*]] = %arg0,
  // CHECK-SAME: %[[S:.*]] = %[[ZEROS]])
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros) : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[C]], %arg1
    %2 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.dot_general %[[D]], %arg1
    %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
    // CHECK: %[[LINE:.*]] = stablehlo.reshape %[[C]] : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %4 = stablehlo.reshape %2 : (tensor<8x64xf32>) -> tensor<1x8x64xf32>
    // CHECK-NEXT: %[[U:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[LINE]], %[[I]]
    %5 = stablehlo.dynamic_update_slice %s, %4, %i, %zero, %zero : (tensor<16x8x64xf32>, tensor<1x8x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x8x64xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %{{.*}}, %[[NEXT]], %[[U]]
    stablehlo.return %6, %3, %5 : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg2, %[[R:.*]] = %[[F]]#2)
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2) : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %last, %k : tensor<i32>
    // CHECK: %[[H:.*]] = stablehlo.dot_general %[[G]], %arg1
    // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[R]], %{{.*}}, sizes = [1, 8, 8]
    %3 = stablehlo.dynamic_slice %s, %2, %zero, %zero, sizes = [1, 8, 64] : (tensor<16x8x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x64xf32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.reshape %[[SLICE]]
    %4 = stablehlo.reshape %3 : (tensor<1x8x64xf32>) -> tensor<8x64xf32>
    // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[C]], %arg1
    %5 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[H]], %[[D]]
    %6 = stablehlo.multiply %5, %4 : tensor<8x64xf32>
    // CHECK-NEXT: stablehlo.dot_general %[[M]], %arg1
    %7 = stablehlo.dot_general %6, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
    %8 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %8, %7, %s : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<8x8xf32>
}
