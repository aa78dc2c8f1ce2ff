// Loops that read what an earlier loop stacks, whatever they are for and however many they are. Here
// the forward loop stacks what follows from its counter alone, so that the stack goes, and with it
// that loop.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" | filecheck %s

// No backward pass, by its names: who reads the stack slice by slice is all that counts.
// CHECK-LABEL: func.func public @two_forward_loops
func.func public @two_forward_loops(%g: tensor<f32>) -> tensor<f32> {
  // CHECK-NOT: stablehlo.dynamic_update_slice
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %0:2 = stablehlo.while(%i = %zero, %s = %zeros) : tensor<i32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %3 = stablehlo.exponential %2 : tensor<f32>
    %4 = stablehlo.reshape %3 : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.dynamic_update_slice %s, %4, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %5 : tensor<i32>, tensor<3xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[C:.*]] = %arg0) : tensor<i32>, tensor<f32>
  // CHECK: %[[I:.*]] = stablehlo.subtract %{{.*}}, %[[K]]
  // CHECK-NEXT: %[[F:.*]] = stablehlo.convert %[[I]]
  // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[F]]
  // CHECK-NEXT: stablehlo.multiply %[[C]], %[[E]]
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("jvp()/while")
  // CHECK-NOT: stablehlo.while
  // CHECK: return
  return %1#1 : tensor<f32>
}

// Both readers recompute what they read.
// CHECK-LABEL: func.func public @two_loops_read_the_stack
func.func public @two_loops_read_the_stack(%g: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  // CHECK-NOT: stablehlo.dynamic_update_slice
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %0:2 = stablehlo.while(%i = %zero, %s = %zeros) : tensor<i32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %3 = stablehlo.exponential %2 : tensor<f32>
    %4 = stablehlo.reshape %3 : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.dynamic_update_slice %s, %4, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %5 : tensor<i32>, tensor<3xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[C:.*]] = %arg0) : tensor<i32>, tensor<f32>
  // CHECK: %[[I:.*]] = stablehlo.subtract %{{.*}}, %[[K]]
  // CHECK-NEXT: %[[F:.*]] = stablehlo.convert %[[I]]
  // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[F]]
  // CHECK-NEXT: stablehlo.multiply %[[C]], %[[E]]
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[C:.*]] = %arg0) : tensor<i32>, tensor<f32>
  // CHECK: %[[I:.*]] = stablehlo.subtract %{{.*}}, %[[K]]
  // CHECK-NEXT: %[[F:.*]] = stablehlo.convert %[[I]]
  // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[F]]
  // CHECK-NEXT: stablehlo.multiply %[[C]], %[[E]]
  %7:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  // CHECK-NOT: stablehlo.while
  // CHECK: return
  return %1#1, %7#1 : tensor<f32>, tensor<f32>
}
