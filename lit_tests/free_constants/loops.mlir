// Which constants free-constants takes out of the carries of loops.
// RUN: hloom-opt %s -p "free-constants{min_bytes=16}" -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p "free-constants{min_bytes=16}" | diff %t -

// A splat that every iteration reads is made in the body; the step that makes it comes along.
// CHECK-LABEL: func.func public @a_splat
func.func public @a_splat(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  %splat = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4xf32>
  // CHECK: %[[L:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[X:.*]] = %arg0)
  // CHECK-SAME: : tensor<i32>, tensor<4xf32>
  %0:3 = stablehlo.while(%i = %zero, %k = %splat, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
    // CHECK: } do {
  } do {
    %1 = stablehlo.add %a, %k : tensor<4xf32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.constant dense<2.0
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: %[[K:.*]] = stablehlo.broadcast_in_dim %[[C]]
    // CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[X]], %[[K]]
    %2 = stablehlo.add %i, %one : tensor<i32>
    // CHECK: stablehlo.return %{{.*}}, %[[A]] : tensor<i32>, tensor<4xf32>
    stablehlo.return %2, %k, %1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: return %[[L]]#1
  return %0#2 : tensor<4xf32>
}

// What the loop gave for the carry is what the carry began as.
// CHECK-LABEL: func.func public @read_after_the_loop
func.func public @read_after_the_loop(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: %[[C:.*]] = stablehlo.constant dense<2.0
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  // CHECK: %[[L:.*]]:2 = stablehlo.while
  %0:3 = stablehlo.while(%i = %zero, %k = %c, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.add %a, %k : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %k, %2 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: stablehlo.multiply %[[C]], %[[L]]#1
  %1 = stablehlo.multiply %0#1, %0#2 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Two constants that share a step: it is cloned once.
// CHECK-LABEL: func.func public @two_constants_of_one_iota
func.func public @two_constants_of_one_iota(%x: tensor<4xi32>) -> tensor<4xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: } do {
  // CHECK-NEXT: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<4xi32>
  %iota = stablehlo.iota dim = 0 : tensor<4xi32>
  // CHECK-NEXT: %[[N:.*]] = stablehlo.negate %[[I]]
  %minus = stablehlo.negate %iota : tensor<4xi32>
  %0:4 = stablehlo.while(%i = %zero, %a = %x, %p = %iota, %m = %minus) : tensor<i32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %a, %p : tensor<4xi32>
    // CHECK-NEXT: %[[S:.*]] = stablehlo.add %{{.*}}, %[[I]]
    %2 = stablehlo.add %1, %m : tensor<4xi32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: %[[T:.*]] = stablehlo.add %[[S]], %[[N]]
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2, %p, %m : tensor<i32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
  }
  return %0#1 : tensor<4xi32>
}

// A constant that goes through two loops is made in the inner body, and neither carries it.
// CHECK-LABEL: func.func public @through_two_loops
func.func public @through_two_loops(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[X:.*]] = %arg0) : tensor<i32>, tensor<4xf32>
  %0:3 = stablehlo.while(%i = %zero, %k = %c, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[Y:.*]] = %[[X]]) : tensor<i32>, tensor<4xf32>
    %1:3 = stablehlo.while(%j = %zero, %l = %k, %b = %a) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    cond {
      %three = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %j, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
      // CHECK: } do {
    } do {
      %3 = stablehlo.add %b, %l : tensor<4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %4 = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %4, %l, %3 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
    }
    // CHECK-NEXT: %[[K:.*]] = stablehlo.constant dense<2.0
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: stablehlo.add %[[Y]], %[[K]]
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %k, %1#2 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#2 : tensor<4xf32>
}

// The must-not-change case of this file: smaller than min_bytes, XLA sinks it itself.
// CHECK-LABEL: func.func public @a_scalar_stays
func.func public @a_scalar_stays(%x: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<2.0> : tensor<f32>
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[K:.*]] = %{{.*}}, %[[X:.*]] = %arg0)
  %0:3 = stablehlo.while(%i = %zero, %k = %c, %a = %x) : tensor<i32>, tensor<f32>, tensor<f32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
    // CHECK: } do {
  } do {
    %1 = stablehlo.add %a, %k : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: stablehlo.add %[[X]], %[[K]]
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %k, %1 : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#2 : tensor<f32>
}

// A mask of causality and padding, for every head, is made in the body of one bit a token: that is
// what light work on constants and on values of a sixteenth of its bytes can make it of.
// CHECK-LABEL: func.func public @a_mask_of_padding
// CHECK:         %[[SEEN:.*]] = stablehlo.compare GT, %arg1
// CHECK:         stablehlo.while(%{{.*}} = %c, %[[X:[^ ]*]] = %arg0, %[[KEPT:[^ ]*]] = %[[SEEN]]) : tensor<i32>, tensor<2x4x16x16xf32>, tensor<2x16xi1>
// CHECK:         do
// CHECK:           %[[COLUMNS:.*]] = stablehlo.broadcast_in_dim %[[KEPT]]
// CHECK:           stablehlo.compare GE
// CHECK:           %[[MASK:.*]] = stablehlo.and %{{.*}}, %[[COLUMNS]]
// CHECK:           stablehlo.select %[[MASK]], %[[X]]
// CHECK:           stablehlo.return %{{.*}}, %{{.*}}, %[[KEPT]] :
func.func public @a_mask_of_padding(%x: tensor<2x4x16x16xf32>, %tokens: tensor<2x16xi32>) -> tensor<2x4x16x16xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0> : tensor<2x16xi32>
  %seen = stablehlo.compare GT, %tokens, %zeros : (tensor<2x16xi32>, tensor<2x16xi32>) -> tensor<2x16xi1>
  %row = stablehlo.iota dim = 2 : tensor<2x4x16x16xi32>
  %column = stablehlo.iota dim = 3 : tensor<2x4x16x16xi32>
  %causal = stablehlo.compare GE, %row, %column : (tensor<2x4x16x16xi32>, tensor<2x4x16x16xi32>) -> tensor<2x4x16x16xi1>
  %columns = stablehlo.broadcast_in_dim %seen, dims = [0, 3] : (tensor<2x16xi1>) -> tensor<2x4x16x16xi1>
  %mask = stablehlo.and %causal, %columns : tensor<2x4x16x16xi1>
  %0:3 = stablehlo.while(%i = %c, %y = %x, %m = %mask) : tensor<i32>, tensor<2x4x16x16xf32>, tensor<2x4x16x16xi1>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.negate %y : tensor<2x4x16x16xf32>
      %2 = stablehlo.select %m, %y, %1 : tensor<2x4x16x16xi1>, tensor<2x4x16x16xf32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %2, %m : tensor<i32>, tensor<2x4x16x16xf32>, tensor<2x4x16x16xi1>
    }
  return %0#1 : tensor<2x4x16x16xf32>
}
