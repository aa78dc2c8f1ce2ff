// Scans inside scans: an inner pair of loops is linked through the stacks of the outer pair.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" | filecheck %s
// Twice is once.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" --debug-info -o %t && \
// RUN:   hloom-opt %t -p "remat{min_bytes=0}" --debug-info | diff %t -

// Two residuals of one product in the inner body: the inner loop stacks the product, the outer one
// stacks that, and the inner backward body makes both residuals of its slice.
// CHECK-LABEL: func.func public @two_levels
func.func public @two_levels(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2x3x4x4xf32>
  // CHECK: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %{{.*}} = %arg0,
  // CHECK-SAME: %[[S:.*]] = %{{.*}}) : tensor<i32>, tensor<4x4xf32>, tensor<2x3x4x4xf32>
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<2x3x4x4xf32>, tensor<2x3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %lines = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4x4xf32>
    // CHECK: %[[FI:.*]]:3 = stablehlo.while(%[[J:[^ ]+]] = %{{[^,]+}}, %[[C:[^ ]+]] = %{{[^,]+}},
    // CHECK-SAME: %[[T:[^ ]+]] = %{{[^,)]+}}) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>
    %3:4 = stablehlo.while(%j = %zero, %d = %c, %u = %lines, %v = %lines) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
    cond {
      %4 = stablehlo.compare LT, %j, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
      // CHECK: } do {
    } do {
      // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[C]], %arg1
      %4 = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %5 = stablehlo.tanh %4 : tensor<4x4xf32>
      %6 = stablehlo.cosine %4 : tensor<4x4xf32>
      // CHECK: %[[LINE:.*]] = stablehlo.reshape %[[D]] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
      %7 = stablehlo.reshape %5 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
      // CHECK-NEXT: stablehlo.dynamic_update_slice %[[T]], %[[LINE]], %[[J]]
      %8 = stablehlo.dynamic_update_slice %u, %7, %j, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
      // CHECK: %[[LINES:.*]] = stablehlo.reshape %[[FI]]#2
      // CHECK-SAME: : (tensor<3x4x4xf32>) -> tensor<1x3x4x4xf32>
      %9 = stablehlo.reshape %6 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
      %10 = stablehlo.dynamic_update_slice %v, %9, %j, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
      %11 = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %11, %5, %8, %10 : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
    } loc("jvp()/while")
    %12 = stablehlo.broadcast_in_dim %3#2, dims = [1, 2, 3] : (tensor<3x4x4xf32>) -> tensor<1x3x4x4xf32>
    %13 = stablehlo.dynamic_update_slice %s, %12, %i, %zero, %zero, %zero : (tensor<2x3x4x4xf32>, tensor<1x3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x3x4x4xf32>
    %14 = stablehlo.broadcast_in_dim %3#3, dims = [1, 2, 3] : (tensor<3x4x4xf32>) -> tensor<1x3x4x4xf32>
    // CHECK-NEXT: stablehlo.dynamic_update_slice %[[S]], %[[LINES]], %[[I]]
    %15 = stablehlo.dynamic_update_slice %t, %14, %i, %zero, %zero, %zero : (tensor<2x3x4x4xf32>, tensor<1x3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x3x4x4xf32>
    %16 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %16, %3#1, %13, %15 : tensor<i32>, tensor<4x4xf32>, tensor<2x3x4x4xf32>, tensor<2x3x4x4xf32>
  } loc("jvp()/while")
  // CHECK: %[[B:.*]]:3 = stablehlo.while(%[[K:.*]] = %{{.*}}, %{{.*}} = %arg2,
  // CHECK-SAME: %[[R:.*]] = %[[F]]#2)
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2, %t = %0#3) : tensor<i32>, tensor<4x4xf32>, tensor<2x3x4x4xf32>, tensor<2x3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %one, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, %zero, %zero, %zero, sizes = [1, 3, 4, 4] : (tensor<2x3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x4x4xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x3x4x4xf32>) -> tensor<3x4x4xf32>
    // CHECK: %[[SLICES:.*]] = stablehlo.dynamic_slice %[[R]]
    %5 = stablehlo.dynamic_slice %t, %2, %zero, %zero, %zero, sizes = [1, 3, 4, 4] : (tensor<2x3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x4x4xf32>
    // CHECK-NEXT: %[[STACK:.*]] = stablehlo.reshape %[[SLICES]]
    // CHECK-SAME: : (tensor<1x3x4x4xf32>) -> tensor<3x4x4xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x3x4x4xf32>) -> tensor<3x4x4xf32>
    // CHECK-NEXT: stablehlo.while(%{{.*}} = %{{.*}}, %[[G:.*]] = %{{.*}}, %[[RI:.*]] = %[[STACK]])
    %7:4 = stablehlo.while(%l = %zero, %d = %c, %u = %4, %v = %6) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
    cond {
      %8 = stablehlo.compare LT, %l, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
      // CHECK: } do {
    } do {
      %8 = stablehlo.subtract %two, %l : tensor<i32>
      %9 = stablehlo.dynamic_slice %u, %8, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
      %10 = stablehlo.reshape %9 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[RI]]
      %11 = stablehlo.dynamic_slice %v, %8, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
      // CHECK-NEXT: %[[P:.*]] = stablehlo.reshape %[[SLICE]]
      %12 = stablehlo.reshape %11 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      // CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[P]]
      // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[TANH]]
      %13 = stablehlo.multiply %d, %10 : tensor<4x4xf32>
      // CHECK-NEXT: %[[COS:.*]] = stablehlo.cosine %[[P]]
      // CHECK-NEXT: stablehlo.multiply %[[M]], %[[COS]]
      %14 = stablehlo.multiply %13, %12 : tensor<4x4xf32>
      %15 = stablehlo.add %l, %one : tensor<i32>
      stablehlo.return %15, %14, %u, %v : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
    } loc("transpose(jvp())/while")
    %16 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %16, %7#1, %s, %t : tensor<i32>, tensor<4x4xf32>, tensor<2x3x4x4xf32>, tensor<2x3x4x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return %[[B]]#1
  return %1#1 : tensor<4x4xf32>
}

// The first loop goes on while its values are small, the second as far as the first got.
// CHECK-LABEL: func.func public @an_open_loop
func.func public @an_open_loop(%x: tensor<4xf32>, %w: tensor<4x4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %nothing = stablehlo.constant dense<-0.0> : tensor<f32>
  %large = stablehlo.constant dense<9.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  // CHECK: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[C:.*]] = %arg0,
  // CHECK-SAME: %[[S:.*]] = %{{.*}}) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  cond {
    %2 = stablehlo.reduce(%c init: %nothing) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.compare LT, %2, %large : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[C]], %arg1
    %2 = stablehlo.dot_general %c, %w, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4x4xf32>) -> tensor<4xf32>
    %3 = stablehlo.tanh %2 : tensor<4xf32>
    %4 = stablehlo.cosine %2 : tensor<4xf32>
    %5 = stablehlo.reshape %3 : (tensor<4xf32>) -> tensor<1x4xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    // CHECK: %[[LINE:.*]] = stablehlo.reshape %[[D]]
    %7 = stablehlo.reshape %4 : (tensor<4xf32>) -> tensor<1x4xf32>
    // CHECK-NEXT: stablehlo.dynamic_update_slice %[[S]], %[[LINE]], %[[I]]
    %8 = stablehlo.dynamic_update_slice %t, %7, %i, %zero : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %9, %3, %6, %8 : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  } loc("jvp()/while")
  // CHECK: %[[B:.*]]:3 = stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg2,
  // CHECK-SAME: %[[R:.*]] = %[[F]]#2)
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2, %t = %0#3) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  // CHECK: cond {
  cond {
    // CHECK-NEXT: stablehlo.compare LT, %[[K]], %[[F]]#0
    %2 = stablehlo.compare LT, %k, %0#0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %0#0, %one : tensor<i32>
    // CHECK: %[[AT:.*]] = stablehlo.subtract %{{.*}}, %[[K]]
    %3 = stablehlo.subtract %2, %k : tensor<i32>
    %4 = stablehlo.dynamic_slice %s, %3, %zero, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %5 = stablehlo.reshape %4 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK: stablehlo.dynamic_slice %[[R]], %[[AT]]
    %6 = stablehlo.dynamic_slice %t, %3, %zero, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x4xf32>) -> tensor<4xf32>
    %8 = stablehlo.multiply %c, %5 : tensor<4xf32>
    %9 = stablehlo.multiply %8, %7 : tensor<4xf32>
    %10 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %10, %9, %s, %t : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: stablehlo.tanh
  // CHECK: stablehlo.cosine
  // CHECK: return %[[B]]#1
  return %1#1 : tensor<4xf32>
}

// The second loop goes one further than the first: it would read what was never written. It stays.
// CHECK-LABEL: func.func public @an_open_loop_that_reads_too_far
func.func public @an_open_loop_that_reads_too_far(%x: tensor<4xf32>, %n: tensor<i32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  // CHECK: stablehlo.while(%{{.*}}) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %3 = stablehlo.tanh %c : tensor<4xf32>
    %4 = stablehlo.cosine %c : tensor<4xf32>
    %5 = stablehlo.reshape %3 : (tensor<4xf32>) -> tensor<1x4xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    %7 = stablehlo.reshape %4 : (tensor<4xf32>) -> tensor<1x4xf32>
    %8 = stablehlo.dynamic_update_slice %t, %7, %i, %zero : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %9, %3, %6, %8 : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%{{.*}}) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2, %t = %0#3) : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %3 = stablehlo.subtract %n, %k : tensor<i32>
    %4 = stablehlo.dynamic_slice %s, %3, %zero, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %5 = stablehlo.reshape %4 : (tensor<1x4xf32>) -> tensor<4xf32>
    %6 = stablehlo.dynamic_slice %t, %3, %zero, sizes = [1, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %7 = stablehlo.reshape %6 : (tensor<1x4xf32>) -> tensor<4xf32>
    %8 = stablehlo.multiply %c, %5 : tensor<4xf32>
    %9 = stablehlo.multiply %8, %7 : tensor<4xf32>
    %10 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %10, %9, %s, %t : tensor<i32>, tensor<4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<4xf32>
}
