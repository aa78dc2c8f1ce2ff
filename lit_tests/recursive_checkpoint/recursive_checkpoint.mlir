// A scan and its backward loop, seven iterations in three segments of two and a last one.
// RUN: hloom-opt %s -p "recursive-checkpoint{segments=4 min_trips=4 min_bytes=1}" -o %t && filecheck %s < %t

// CHECK-LABEL: func.func public @layers(%arg0: tensor<8xf32>, %arg1: tensor<7x8xf32>)
func.func public @layers(%x: tensor<8xf32>, %w: tensor<7x8xf32>) -> (tensor<8xf32>, tensor<7x8xf32>) {
  // The carry is stored at the border of each segment; the segment stacks nothing.
  // CHECK:      %[[F:.*]]:3 = stablehlo.while(%[[J:.*]] = %{{.*}}, %[[C:.*]] = %arg0, %[[B:.*]] = %{{.*}}) : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>
  // CHECK:        %[[ROW:.*]] = stablehlo.reshape %[[C]]
  // CHECK:        stablehlo.dynamic_update_slice %[[B]], %[[ROW]], %[[J]],
  // CHECK:        stablehlo.while({{.*}} = %[[C]], {{.*}}) : tensor<i32>, tensor<8xf32>, tensor<i32>
  // CHECK-NOT:    stablehlo.dynamic_update_slice
  // The last iteration stacks its residual, and the backward loop begins with it.
  // CHECK:      %[[R:.*]]:4 = stablehlo.while({{.*}} = %[[F]]#1, {{.*}}) : tensor<i32>, tensor<8xf32>, tensor<i32>, tensor<1x8xf32>
  // CHECK:      %[[D:.*]]:5 = stablehlo.while({{.*}} = %[[R]]#1, {{.*}} = %[[R]]#3, {{.*}})
  // The segments follow from the last to the first: each is computed again from its border.
  // CHECK:      stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %[[D]]#1, {{.*}} = %[[D]]#2) : tensor<i32>, tensor<8xf32>, tensor<7x8xf32>
  // CHECK:        %[[TWO:.*]] = stablehlo.constant dense<2>
  // CHECK:        %[[AT:.*]] = stablehlo.subtract %[[TWO]], %[[K]]
  // CHECK:        stablehlo.dynamic_slice %[[F]]#2, %[[AT]],
  // CHECK:        %[[S:.*]]:4 = stablehlo.while({{.*}}) : tensor<i32>, tensor<8xf32>, tensor<i32>, tensor<2x8xf32>
  // CHECK:        stablehlo.while({{.*}} = %[[G]], {{.*}} = %[[S]]#3, {{.*}}) : tensor<i32>, tensor<8xf32>, tensor<7x8xf32>, tensor<2x8xf32>, tensor<i32>
  // CHECK-NOT:  stablehlo.while
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %empty = stablehlo.constant dense<0.0> : tensor<7x8xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty)
      : tensor<i32>, tensor<8xf32>, tensor<7x8xf32>
  cond {
    %n = stablehlo.constant dense<7> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.dynamic_slice %w, %i, %zero, sizes = [1, 8]
        : (tensor<7x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8xf32>) -> tensor<8xf32>
    %3 = stablehlo.multiply %c, %2 : tensor<8xf32>
    %4 = stablehlo.tanh %3 : tensor<8xf32>
    %5 = stablehlo.reshape %4 : (tensor<8xf32>) -> tensor<1x8xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero
        : (tensor<7x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<7x8xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %4, %6 : tensor<i32>, tensor<8xf32>, tensor<7x8xf32>
  }
  %8:4 = stablehlo.while(%j = %zero, %g = %0#1, %t = %0#2, %d = %empty)
      : tensor<i32>, tensor<8xf32>, tensor<7x8xf32>, tensor<7x8xf32>
  cond {
    %n = stablehlo.constant dense<7> : tensor<i32>
    %p = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %six = stablehlo.constant dense<6> : tensor<i32>
    %k = stablehlo.subtract %six, %j : tensor<i32>
    %9 = stablehlo.dynamic_slice %t, %k, %zero, sizes = [1, 8]
        : (tensor<7x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<1x8xf32>) -> tensor<8xf32>
    %11 = stablehlo.multiply %g, %10 : tensor<8xf32>
    %12 = stablehlo.reshape %11 : (tensor<8xf32>) -> tensor<1x8xf32>
    %13 = stablehlo.dynamic_update_slice %d, %12, %k, %zero
        : (tensor<7x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<7x8xf32>
    %14 = stablehlo.add %j, %one : tensor<i32>
    stablehlo.return %14, %11, %t, %13
        : tensor<i32>, tensor<8xf32>, tensor<7x8xf32>, tensor<7x8xf32>
  }
  return %8#1, %8#3 : tensor<8xf32>, tensor<7x8xf32>
}
