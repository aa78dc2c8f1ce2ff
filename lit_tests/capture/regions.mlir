// What capture makes one region of.
// RUN: hloom-opt %s -p "capture{loops=on}" --target h100_sxm -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p "capture{loops=on}" --target h100_sxm | diff %t -

// A run of work; constants cost nothing and stay outside.
// CHECK-LABEL: func.func public @a_run
func.func public @a_run(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.tanh %0 : tensor<8x8xf32>
  // CHECK-NEXT: %[[C:.*]] = stablehlo.constant
  %c = stablehlo.constant dense<2.0> : tensor<8x8xf32>
  %2 = stablehlo.multiply %1, %c : tensor<8x8xf32>
  %3 = stablehlo.exponential %2 : tensor<8x8xf32>
  %4 = stablehlo.add %3, %1 : tensor<8x8xf32>
  // CHECK-NEXT: %[[R:.*]] = stablehlo.composite "hloom.capture_region" %arg0, %arg1, %[[C]] {
  // CHECK-SAME: composite_attributes = {collectives = false, has_loops = true, loops = true,
  // CHECK-SAME: min_ops = 5 : i64, operations = 5 : i64},
  // CHECK-SAME: decomposition = @hloom.capture_region_0, version = 1 : i32}
  // CHECK-NEXT: return %[[R]]
  return %4 : tensor<8x8xf32>
}

// A loop that slices at its counter, with all that is inside it.
// CHECK-LABEL: func.func public @a_loop
func.func public @a_loop(%x: tensor<8x8xf32>, %ws: tensor<40x8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<8x8xf32>
  cond {
    %n = stablehlo.constant dense<40> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.constant
    %null = stablehlo.constant dense<0> : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %i, %null, %null, sizes = [1, 8, 8] : (tensor<40x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %w = stablehlo.reshape %s : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8x8xf32>
  }
  // CHECK-NEXT: %[[R:.*]] = stablehlo.composite "hloom.capture_region" %[[C]], %arg0, %arg1 {
  // CHECK-SAME: composite_attributes = {collectives = false, has_loops = true
  // CHECK-SAME: operations = 6 : i64}, decomposition = @hloom.capture_region_1
  // CHECK-NEXT: return %[[R]]
  return %0#1 : tensor<8x8xf32>
}

// CHECK-LABEL: func.func private @hloom.capture_region_0(
// CHECK-SAME: %arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>, %arg2: tensor<8x8xf32>)
// CHECK-NEXT:    %[[D:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK-NEXT:    %[[T:.*]] = stablehlo.tanh %[[D]]
// CHECK-NEXT:    %[[M:.*]] = stablehlo.multiply %[[T]], %arg2
// CHECK-NEXT:    %[[E:.*]] = stablehlo.exponential %[[M]]
// CHECK-NEXT:    %[[A:.*]] = stablehlo.add %[[E]], %[[T]]
// CHECK-NEXT:    return %[[A]]

// CHECK-LABEL: func.func private @hloom.capture_region_1(
// CHECK-SAME: %arg0: tensor<i32>, %arg1: tensor<8x8xf32>, %arg2: tensor<40x8x8xf32>)
// CHECK-NEXT:    %[[W:.*]]:2 = stablehlo.while(%{{.*}} = %arg0, %{{.*}} = %arg1)
// CHECK:           stablehlo.dynamic_slice %arg2
// CHECK:         return %[[W]]#1
