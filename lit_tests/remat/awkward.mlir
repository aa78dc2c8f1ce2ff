// Scans whose residuals need care: where they are returned, how stored, and what makes them.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" | filecheck %s
// Twice is once.
// RUN: hloom-opt %s -p "remat{min_bytes=0}" --debug-info -o %t && \
// RUN:   hloom-opt %t -p "remat{min_bytes=0}" --debug-info | diff %t -

// The backward body returns a residual as it is: it returns what is computed in its place.
// CHECK-LABEL: func.func public @the_backward_body_returns_a_residual
func.func public @the_backward_body_returns_a_residual(%g: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
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
  // CHECK: %[[B:.*]]:2 = stablehlo.while(%[[K:.*]] = %{{.*}}, %{{.*}} = %arg0)
  // CHECK-SAME: : tensor<i32>, tensor<f32>
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.dynamic_slice %s, %k, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[K]], %{{.*}}
    %4 = stablehlo.add %k, %one : tensor<i32>
    // CHECK-NEXT: %[[N:.*]] = stablehlo.convert %[[K]] : (tensor<i32>) -> tensor<f32>
    // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[N]]
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[E]] : tensor<i32>, tensor<f32>
    stablehlo.return %4, %3, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return %[[B]]#1
  return %1#1 : tensor<f32>
}

// A new stack of complex numbers begins as a real zero, converted.
// CHECK-LABEL: func.func public @a_stack_of_complex_numbers
func.func public @a_stack_of_complex_numbers(%x: tensor<4x4xcomplex<f32>>, %g: tensor<4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  // CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %f = stablehlo.constant dense<(0.0,0.0)> : tensor<complex<f32>>
  // CHECK-NEXT: %[[COMPLEX:.*]] = stablehlo.convert %[[ZERO]]
  // CHECK-SAME: : (tensor<f32>) -> tensor<complex<f32>>
  // CHECK-NEXT: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %[[COMPLEX]], dims = []
  // CHECK-SAME: : (tensor<complex<f32>>) -> tensor<3x4x4xcomplex<f32>>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<complex<f32>>) -> tensor<3x4x4xcomplex<f32>>
  // CHECK-NEXT: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[C:.*]] = %arg0,
  // CHECK-SAME: %[[S:.*]] = %[[ZEROS]])
  %0:4 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros, %t = %zeros) : tensor<i32>, tensor<4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[SIN:.*]] = stablehlo.sine %[[C]]
    %2 = stablehlo.sine %c : tensor<4x4xcomplex<f32>>
    %3 = stablehlo.cosine %c : tensor<4x4xcomplex<f32>>
    %4 = stablehlo.tanh %c : tensor<4x4xcomplex<f32>>
    %5 = stablehlo.reshape %3 : (tensor<4x4xcomplex<f32>>) -> tensor<1x4x4xcomplex<f32>>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero, %zero : (tensor<3x4x4xcomplex<f32>>, tensor<1x4x4xcomplex<f32>>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xcomplex<f32>>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[I]], %{{.*}}
    // CHECK-NEXT: %[[ZERO:.*]] = stablehlo.constant dense<0>
    // CHECK-NEXT: %[[LINE:.*]] = stablehlo.reshape %[[C]]
    %7 = stablehlo.reshape %4 : (tensor<4x4xcomplex<f32>>) -> tensor<1x4x4xcomplex<f32>>
    // CHECK-NEXT: %[[U:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[LINE]], %[[I]], %[[ZERO]],
    // CHECK-SAME: %[[ZERO]]
    %8 = stablehlo.dynamic_update_slice %t, %7, %i, %zero, %zero : (tensor<3x4x4xcomplex<f32>>, tensor<1x4x4xcomplex<f32>>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x4x4xcomplex<f32>>
    %9 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[SIN]], %[[U]]
    stablehlo.return %9, %2, %6, %8 : tensor<i32>, tensor<4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg1, %[[R:.*]] = %[[F]]#2)
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2, %t = %0#3) : tensor<i32>, tensor<4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xcomplex<f32>>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xcomplex<f32>>
    %4 = stablehlo.reshape %3 : (tensor<1x4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>>
    // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[R]], %{{.*}}, sizes = [1, 4, 4]
    %5 = stablehlo.dynamic_slice %t, %2, %zero, %zero, sizes = [1, 4, 4] : (tensor<3x4x4xcomplex<f32>>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xcomplex<f32>>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.reshape %[[SLICE]]
    %6 = stablehlo.reshape %5 : (tensor<1x4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>>
    // CHECK-NEXT: %[[COS:.*]] = stablehlo.cosine %[[C]]
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[COS]]
    %7 = stablehlo.multiply %c, %4 : tensor<4x4xcomplex<f32>>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %[[C]]
    // CHECK-NEXT: %[[N:.*]] = stablehlo.multiply %[[M]], %[[T]]
    %8 = stablehlo.multiply %7, %6 : tensor<4x4xcomplex<f32>>
    %9 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %9, %8, %s, %t : tensor<i32>, tensor<4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>, tensor<3x4x4xcomplex<f32>>
  } loc("transpose(jvp())/while")
  // CHECK: return
  return %1#1 : tensor<4x4xcomplex<f32>>
}

// A type of floating point that has no zero: a new stack begins as what a zero converts to.
// CHECK-LABEL: func.func public @a_stack_of_powers_of_two
func.func public @a_stack_of_powers_of_two(%x: tensor<4xf8E8M0FNU>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  // CHECK: %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK-NEXT: %[[POWER:.*]] = stablehlo.convert %[[ZERO]] : (tensor<f32>) -> tensor<f8E8M0FNU>
  // CHECK-NEXT: %[[POWERS:.*]] = stablehlo.broadcast_in_dim %[[POWER]], dims = []
  // CHECK-SAME: : (tensor<f8E8M0FNU>) -> tensor<3x4xf8E8M0FNU>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  // CHECK-NEXT: %[[F:.*]]:3 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[C:.*]] = %arg0,
  // CHECK-SAME: %[[S:.*]] = %[[POWERS]])
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros) : tensor<i32>, tensor<4xf8E8M0FNU>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.convert %c : (tensor<4xf8E8M0FNU>) -> tensor<4xf32>
    %3 = stablehlo.sqrt %2 : tensor<4xf32>
    %4 = stablehlo.convert %3 : (tensor<4xf32>) -> tensor<4xf8E8M0FNU>
    // CHECK: %[[LINE:.*]] = stablehlo.reshape %[[C]]
    %5 = stablehlo.reshape %3 : (tensor<4xf32>) -> tensor<1x4xf32>
    // CHECK-NEXT: %[[U:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[LINE]], %[[I]]
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %{{.*}}, %{{.*}}, %[[U]]
    stablehlo.return %7, %4, %6 : tensor<i32>, tensor<4xf8E8M0FNU>, tensor<3x4xf32>
  } loc("jvp()/while")
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[G:.*]] = %arg1, %[[R:.*]] = %[[F]]#2)
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK: %[[SLICE:.*]] = stablehlo.dynamic_slice %[[R]]
    %2 = stablehlo.dynamic_slice %s, %k, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.reshape %[[SLICE]]
    %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[N:.*]] = stablehlo.convert %[[C]] : (tensor<4xf8E8M0FNU>) -> tensor<4xf32>
    // CHECK-NEXT: %[[ROOT:.*]] = stablehlo.sqrt %[[N]]
    // CHECK-NEXT: stablehlo.multiply %[[G]], %[[ROOT]]
    %4 = stablehlo.multiply %c, %3 : tensor<4xf32>
    %5 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %5, %4, %s : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return
  return %1#1 : tensor<4xf32>
}

// Stacked in each iteration, but reshaped before the loop: the backward body reads that instead.
// CHECK-LABEL: func.func public @a_value_from_outside_is_stacked
func.func public @a_value_from_outside_is_stacked(%v: tensor<4xf32>, %g: tensor<4xf32>) -> (tensor<4xf32>, tensor<1x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  // CHECK: %[[LINE:.*]] = stablehlo.reshape %arg0 : (tensor<4xf32>) -> tensor<1x4xf32>
  %line = stablehlo.reshape %v : (tensor<4xf32>) -> tensor<1x4xf32>
  %0:2 = stablehlo.while(%i = %zero, %s = %zeros) : tensor<i32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.dynamic_update_slice %s, %line, %i, %zero : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<3x4xf32>
  } loc("jvp()/while")
  // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.while(%[[K:.*]] = %{{.*}}, %[[G:.*]] = %arg1)
  // CHECK-SAME: : tensor<i32>, tensor<4xf32>
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
    // CHECK: } do {
  } do {
    %2 = stablehlo.dynamic_slice %s, %k, %zero, sizes = [1, 4] : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    // CHECK-NEXT: %[[V:.*]] = stablehlo.reshape %[[LINE]]
    %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[G]], %[[V]]
    %4 = stablehlo.multiply %c, %3 : tensor<4xf32>
    // CHECK-NEXT: %[[NEXT:.*]] = stablehlo.add %[[K]], %{{.*}}
    %5 = stablehlo.add %k, %one : tensor<i32>
    // CHECK-NEXT: stablehlo.return %[[NEXT]], %[[M]]
    stablehlo.return %5, %4, %s : tensor<i32>, tensor<4xf32>, tensor<3x4xf32>
  } loc("transpose(jvp())/while")
  // CHECK: return %[[B]]#1, %[[LINE]]
  return %1#1, %line : tensor<4xf32>, tensor<1x4xf32>
}

// The result of another forward loop is stacked. That loop is rewritten first: the backward body
// reads the result of the one that stands in its place.
// CHECK-LABEL: func.func public @a_result_of_a_rewritten_loop_is_stacked
func.func public @a_result_of_a_rewritten_loop_is_stacked(%x: tensor<1xf32>, %g: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3xf32>
  // CHECK: %[[F:.*]]:2 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %arg0)
  // CHECK-SAME: : tensor<i32>, tensor<1xf32>
  %0:3 = stablehlo.while(%i = %zero, %s = %zeros, %c = %x) : tensor<i32>, tensor<3xf32>, tensor<1xf32>
  cond {
    %4 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %4 : tensor<i1>
  } do {
    %4 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %5 = stablehlo.exponential %4 : tensor<f32>
    %6 = stablehlo.reshape %5 : (tensor<f32>) -> tensor<1xf32>
    %7 = stablehlo.dynamic_update_slice %s, %6, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %8 = stablehlo.multiply %c, %6 : tensor<1xf32>
    %9 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %9, %7, %8 : tensor<i32>, tensor<3xf32>, tensor<1xf32>
  } loc("jvp()/while")
  %1:2 = stablehlo.while(%i = %zero, %s = %zeros) : tensor<i32>, tensor<3xf32>
  cond {
    %4 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %4 : tensor<i1>
  } do {
    %4 = stablehlo.dynamic_update_slice %s, %0#2, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %4 : tensor<i32>, tensor<3xf32>
  } loc("jvp()/while")
  // CHECK: %[[B:.*]]:2 = stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %arg1)
  // CHECK-SAME: : tensor<i32>, tensor<f32>
  %2:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %4 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %4 : tensor<i1>
  } do {
    %4 = stablehlo.dynamic_slice %s, %k, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %5 = stablehlo.reshape %4 : (tensor<1xf32>) -> tensor<f32>
    %6 = stablehlo.multiply %c, %5 : tensor<f32>
    %7 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %7, %6, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[G:.*]] = %[[B]]#1) : tensor<i32>, tensor<f32>
  %3:3 = stablehlo.while(%k = %zero, %c = %2#1, %s = %1#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %4 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %4 : tensor<i1>
    // CHECK: } do {
  } do {
    %4 = stablehlo.dynamic_slice %s, %k, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    // CHECK-NEXT: %[[R:.*]] = stablehlo.reshape %[[F]]#1
    %5 = stablehlo.reshape %4 : (tensor<1xf32>) -> tensor<f32>
    // CHECK-NEXT: stablehlo.multiply %[[G]], %[[R]]
    %6 = stablehlo.multiply %c, %5 : tensor<f32>
    %7 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %7, %6, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %3#1 : tensor<f32>
}
