// A scan and its backward loop as two parts each.
// RUN: hloom-opt %s -p "split-loop{at=3}" -o %t && filecheck %s < %t

// CHECK-LABEL: func.func public @layers(%arg0: tensor<8xf32>, %arg1: tensor<5x8xf32>)
func.func public @layers(%x: tensor<8xf32>, %w: tensor<5x8xf32>) -> (tensor<8xf32>, tensor<5x8xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %empty = stablehlo.constant dense<0.0> : tensor<5x8xf32>
  // The first three iterations stack three slices, at their counter.
  // CHECK:      stablehlo.broadcast_in_dim %{{.*}} -> tensor<3x8xf32>
  // CHECK:      %[[A:.*]]:3 = stablehlo.while({{.*}} = %arg0, {{.*}}) : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>
  // CHECK:        stablehlo.constant dense<3> : tensor<i32>
  // CHECK:        stablehlo.dynamic_slice %arg1, %[[I:[^,]*]],
  // CHECK:        stablehlo.dynamic_update_slice %{{.*}}, %{{.*}}, %[[I]],
  // The others go on with their results, read the weights three rows on, and stack two slices.
  // CHECK:      stablehlo.broadcast_in_dim %{{.*}} -> tensor<2x8xf32>
  // CHECK:      %[[B:.*]]:3 = stablehlo.while(%[[J:.*]] = %{{.*}}, {{.*}} = %[[A]]#1, {{.*}}) : tensor<i32>, tensor<8xf32>, tensor<2x8xf32>
  // CHECK:        stablehlo.constant dense<2> : tensor<i32>
  // CHECK:        %[[THREE:.*]] = stablehlo.constant dense<3> : tensor<i32>
  // CHECK:        %[[K:.*]] = stablehlo.add %[[J]], %[[THREE]]
  // CHECK:        stablehlo.dynamic_slice %arg1, %[[K]],
  // CHECK:        stablehlo.dynamic_update_slice %{{.*}}, %{{.*}}, %[[J]],
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty)
      : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>
  cond {
    %n = stablehlo.constant dense<5> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.dynamic_slice %w, %i, %zero, sizes = [1, 8]
        : (tensor<5x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x8xf32>) -> tensor<8xf32>
    %3 = stablehlo.multiply %c, %2 : tensor<8xf32>
    %4 = stablehlo.tanh %3 : tensor<8xf32>
    %5 = stablehlo.reshape %4 : (tensor<8xf32>) -> tensor<1x8xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero
        : (tensor<5x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<5x8xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %4, %6 : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>
  }
  // The backward loop begins with the last two iterations. Its gradients stay one stack.
  // CHECK:      %[[C:.*]]:4 = stablehlo.while({{.*}} = %[[B]]#1, {{.*}} = %[[B]]#2) : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>, tensor<2x8xf32>
  // CHECK:        %[[ONE:.*]] = stablehlo.constant dense<1> : tensor<i32>
  // CHECK:        %[[BACK:.*]] = stablehlo.subtract %[[ONE]], %
  // CHECK:        stablehlo.dynamic_slice %{{.*}}, %[[BACK]], %{{.*}} : (tensor<2x8xf32>
  // CHECK:      stablehlo.while({{.*}} = %[[C]]#1, {{.*}} = %[[C]]#2, {{.*}} = %[[A]]#2) : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>, tensor<3x8xf32>
  // CHECK-NOT:  stablehlo.while
  %8:4 = stablehlo.while(%j = %zero, %g = %0#1, %t = %0#2, %d = %empty)
      : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>, tensor<5x8xf32>
  cond {
    %n = stablehlo.constant dense<5> : tensor<i32>
    %p = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %four = stablehlo.constant dense<4> : tensor<i32>
    %k = stablehlo.subtract %four, %j : tensor<i32>
    %9 = stablehlo.dynamic_slice %t, %k, %zero, sizes = [1, 8]
        : (tensor<5x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %10 = stablehlo.reshape %9 : (tensor<1x8xf32>) -> tensor<8xf32>
    %11 = stablehlo.multiply %g, %10 : tensor<8xf32>
    %12 = stablehlo.reshape %11 : (tensor<8xf32>) -> tensor<1x8xf32>
    %13 = stablehlo.dynamic_update_slice %d, %12, %k, %zero
        : (tensor<5x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<5x8xf32>
    %14 = stablehlo.add %j, %one : tensor<i32>
    stablehlo.return %14, %11, %t, %13
        : tensor<i32>, tensor<8xf32>, tensor<5x8xf32>, tensor<5x8xf32>
  }
  return %8#1, %8#3 : tensor<8xf32>, tensor<5x8xf32>
}
