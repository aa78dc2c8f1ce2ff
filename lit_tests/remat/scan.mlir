// What a scan stores for its backward loop, and what the backward body computes again.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" | filecheck %s
// Twice is once.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" --debug-info -o %t && \
// RUN:   hloom-opt %t -p "remat{min_bytes=0}" --debug-info | diff %t -

// Two residuals of one product: the loop stacks the product, the backward body makes both of it.
// CHECK-LABEL: func.func public @two_residuals_of_one_product
func.func public @two_residuals_of_one_product(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = []
  // CHECK-SAME: : (tensor<f32>) -> tensor<3x4x4xf32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4x4xf32>
  // CHECK-NEXT: %[[F:.*]]:4 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[W:.*]] = %arg1,
  // CHECK-SAME: %[[C:.*]] = %arg0, %[[S:.*]] = %[[ZEROS]])
  %0:5 = stablehlo.while(%i = %zero, %v = %w, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[C]], %[[W]]
    %2 = stablehlo.dot_general %c, %v, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[D]]
    %3 = stablehlo.tanh %2 : tensor<4x4xf32>
    %4 = stablehlo.cosine %2 : tensor<4x4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[I]], %{{.*}}
    // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0>
    // CHECK-NEXT: %[[LINE:.*]] = stablehlo.reshape %[[D]] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %5 = stablehlo.reshape %3 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    %7 = stablehlo.broadcast_in_dim %4, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    // CHECK-NEXT: %[[U:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[LINE]], %[[I]], %[[ZERO]],
    // CHECK-SAME: %[[ZERO]]
    %8 = stablehlo.dynamic_update_slice %t, %7, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[W]], %[[T]], %[[U]]
    stablehlo.return %9, %v, %3, %6, %8 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  } loc("jvp()/while")
  // CHECK: %[[B:.*]]:3 = stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg2,
  // CHECK-SAME: %[[R:.*]] = %[[F]]#3)
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#3, %t = %0#4) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[AT:.*]] = stablehlo.subtract %{{.*}}, %[[K]]
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0>
    // CHECK-NEXT: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[R]], %[[AT]], %[[ZERO]],
    // CHECK-SAME: %[[ZERO]], sizes = [1, 4, 4]
    %5 = stablehlo.dynamic_slice %t, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    // CHECK-NEXT: %[[D:.*]] = stablehlo.reshape %[[SLICE]]
    %6 = stablehlo.reshape %5 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[D]]
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[T]]
    %7 = stablehlo.multiply %c, %4 : tensor<4x4xf32>
    // CHECK-NEXT: %[[COS:.*]] = stablehlo.cosine %[[D]]
    // CHECK-NEXT: %[[N:.*]] = stablehlo.multiply %[[M]], %[[COS]]
    %8 = stablehlo.multiply %7, %6 : tensor<4x4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[K]], %{{.*}}
    %9 = stablehlo.add %k, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[N]], %[[R]]
    stablehlo.return %9, %8, %s, %t : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return %[[B]]#1
  return %1#1 : tensor<4x4xf32>
}

// The carry is the cheapest to store: two residuals follow from it, so it gets a stack of its own.
// CHECK-LABEL: func.func public @the_carry_is_stored
func.func public @the_carry_is_stored(%x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4x4xf32>
  // CHECK: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[C:.*]] = %arg0,
  // CHECK-SAME: %[[S:.*]] = %{{.*}})
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[SIN:.*]] = stablehlo.sine %[[C]]
    %2 = stablehlo.sine %c : tensor<4x4xf32>
    %3 = stablehlo.cosine %c : tensor<4x4xf32>
    %4 = stablehlo.tanh %c : tensor<4x4xf32>
    %5 = stablehlo.reshape %3 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[I]], %{{.*}}
    // CHECK: %[[LINE:.*]] = stablehlo.reshape %[[C]]
    %7 = stablehlo.reshape %4 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    // CHECK-NEXT: %[[U:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[LINE]], %[[I]]
    %8 = stablehlo.dynamic_update_slice %t, %7, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[SIN]], %[[U]]
    stablehlo.return %9, %2, %6, %8 : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg1, %[[R:.*]] = %[[F]]#2)
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2, %t = %0#3) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[R]], %{{.*}}, sizes = [1, 4, 4]
    %5 = stablehlo.dynamic_slice %t, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.reshape %[[SLICE]]
    %6 = stablehlo.reshape %5 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    // CHECK-NEXT: %[[COS:.*]] = stablehlo.cosine %[[C]]
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[COS]]
    %7 = stablehlo.multiply %c, %4 : tensor<4x4xf32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[C]]
    // CHECK-NEXT: %[[N:.*]] = stablehlo.multiply %[[M]], %[[T]]
    %8 = stablehlo.multiply %7, %6 : tensor<4x4xf32>
    %9 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %9, %8, %s, %t : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return
  return %1#1 : tensor<4x4xf32>
}

// What follows from the counter, an invariant and a slice of a scanned input is not stored at all.
// The backward loop counts up and reads back to front: where it reads is the forward counter. The
// invariant comes in as a new operand, the scanned input by the operand that it has already.
// CHECK-LABEL: func.func public @counter_invariant_and_scanned_input
func.func public @counter_invariant_and_scanned_input(%xs: tensor<3x4xf32>, %w: tensor<4xf32>, %x: tensor<4xf32>, %g: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  // CHECK: %[[F:.*]]:4 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %arg0, %{{.*}} = %arg1,
  // CHECK-SAME: %{{.*}} = %arg2)
  %0:5 = stablehlo.while(%i = %zero, %a = %xs, %v = %w, %c = %x, %s = %zeros) : tensor<i32>, tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: %[[B:.*]]:4 = stablehlo.while(%[[K:.*]] = %{{.*}}, %[[XS:.*]] = %arg0,
    // CHECK-SAME: %[[G:.*]] = %arg3, %[[W:.*]] = %arg1)
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[AT:.*]] = stablehlo.subtract %{{.*}}, %[[K]]
    // CHECK-NEXT: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[XS]], %[[AT]], %{{.*}}, sizes = [1, 4]
    %2 = stablehlo.dynamic_slice %a, %i, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    // CHECK-NEXT: %[[X:.*]] = stablehlo.reshape %[[SLICE]]
    %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[N:.*]] = stablehlo.convert %[[AT]] : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    // CHECK-NEXT: %[[NS:.*]] = stablehlo.broadcast_in_dim %[[N]]
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[W]], %[[NS]]
    %6 = stablehlo.add %v, %5 : tensor<4xf32>
    %7 = stablehlo.multiply %6, %3 : tensor<4xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.multiply %[[SUM]], %{{.*}}
    %8 = stablehlo.multiply %c, %7 : tensor<4xf32>
    %9 = stablehlo.reshape %7 : (tensor<4xf32>) -> tensor<1x4xf32>
    %10 = stablehlo.dynamic_update_slice %s, %9, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %11 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %11, %a, %v, %8, %10 : tensor<i32>, tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("jvp()/while")
  %1:4 = stablehlo.while(%k = %zero, %a = %xs, %c = %g, %s = %0#4) : tensor<i32>, tensor<3x4xf32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[R]]
    %5 = stablehlo.multiply %c, %4 : tensor<4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[K]], %{{.*}}
    %6 = stablehlo.add %k, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[XS]], %[[M]], %[[W]]
    stablehlo.return %6, %a, %5, %s : tensor<i32>, tensor<3x4xf32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return
  return %0#3, %1#2 : tensor<4xf32>, tensor<4xf32>
}

// A scan of reverse=True writes back to front and its backward loop reads front to back: the forward
// counter is the last index less the place of the slice.
// CHECK-LABEL: func.func public @a_reversed_scan
func.func public @a_reversed_scan(%x: tensor<4xf32>, %g: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  // CHECK: %{{.*}}:2 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %arg0)
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg1)
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %three, %i : tensor<i32>
    // CHECK-NEXT: %[[LAST:.*]] = stablehlo.constant dense<2>
    // CHECK-NEXT: %[[I:.*]] = stablehlo.subtract %[[LAST]], %[[K]]
    %3 = stablehlo.subtract %2, %one : tensor<i32>
    // CHECK-NEXT: %[[N:.*]] = stablehlo.convert %[[I]] : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    // CHECK-NEXT: %[[NS:.*]] = stablehlo.broadcast_in_dim %[[N]]
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[NS]]
    %6 = stablehlo.exponential %5 : tensor<4xf32>
    %7 = stablehlo.multiply %c, %6 : tensor<4xf32>
    %8 = stablehlo.reshape %6 : (tensor<4xf32>) -> tensor<1x4xf32>
    %9 = stablehlo.dynamic_update_slice %s, %8, %3, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %10 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %10, %7, %9 : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("jvp()/while")
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.dynamic_slice %s, %k, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[E]]
    %4 = stablehlo.multiply %c, %3 : tensor<4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[K]], %{{.*}}
    %5 = stablehlo.add %k, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[M]]
    stablehlo.return %5, %4, %s : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return
  return %0#1, %1#1 : tensor<4xf32>, tensor<4xf32>
}

// A stack that is also returned stays; what follows from it is computed from its slices.
// CHECK-LABEL: func.func public @a_returned_stack_stays
func.func public @a_returned_stack_stays(%x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<3x4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4x4xf32>
  // CHECK: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[C:.*]] = %arg0,
  // CHECK-SAME: %[[S:.*]] = %{{.*}})
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[D:.*]] = stablehlo.dot_general %[[C]], %[[C]]
    %2 = stablehlo.dot_general %c, %c, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.tanh %2 : tensor<4x4xf32>
    %4 = stablehlo.reshape %2 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %5 = stablehlo.dynamic_update_slice %s, %4, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    // CHECK-NEXT: %[[LINE:.*]] = stablehlo.reshape %[[D]]
    %6 = stablehlo.reshape %3 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    // CHECK-NEXT: %[[U:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[LINE]]
    %7 = stablehlo.dynamic_update_slice %t, %6, %i, %zero, %zero : (tensor<3x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[I]], %{{.*}}
    %8 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[D]], %[[U]]
    stablehlo.return %8, %2, %5, %7 : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>, tensor<3x4x4xf32>
  } loc("jvp()/while")
  // CHECK: %[[B:.*]]:3 = stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg1,
  // CHECK-SAME: %[[R:.*]] = %[[F]]#2)
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %t = %0#3) : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[R]]
    %3 = stablehlo.dynamic_slice %t, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    // CHECK-NEXT: %[[D:.*]] = stablehlo.reshape %[[SLICE]]
    %4 = stablehlo.reshape %3 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[D]]
    // CHECK-NEXT: stablehlo.multiply %[[G]], %[[T]]
    %5 = stablehlo.multiply %c, %4 : tensor<4x4xf32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %t : tensor<i32>, tensor<4x4xf32>, tensor<3x4x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return %[[B]]#1, %[[F]]#2
  return %1#1, %0#2 : tensor<4x4xf32>, tensor<3x4x4xf32>
}

// The must-not-change case of this file: one residual that is worth what it would be made of.
// CHECK-LABEL: func.func public @nothing_gained
func.func public @nothing_gained(%x: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  // CHECK: %[[F:.*]]:3 = stablehlo.while
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    // CHECK: %[[T:.*]] = stablehlo.tanh
    %2 = stablehlo.tanh %c : tensor<4xf32>
    // CHECK-NEXT: %[[LINE:.*]] = stablehlo.reshape %[[T]]
    %3 = stablehlo.reshape %2 : (tensor<4xf32>) -> tensor<1x4xf32>
    // CHECK-NEXT: stablehlo.dynamic_update_slice %{{.*}}, %[[LINE]]
    %4 = stablehlo.dynamic_update_slice %s, %3, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %2, %4 : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %arg1, %[[S:.*]] = %[[F]]#2)
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[S]]
    %3 = stablehlo.dynamic_slice %s, %2, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.reshape %[[SLICE]]
    %4 = stablehlo.reshape %3 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: stablehlo.multiply %{{.*}}, %[[R]]
    %5 = stablehlo.multiply %c, %4 : tensor<4xf32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return
  return %1#1 : tensor<4xf32>
}
