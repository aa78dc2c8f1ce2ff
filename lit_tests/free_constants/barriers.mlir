// Which operands free-constants takes out of optimization barriers.
// RUN: hloom-opt %s -p free-constants -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p free-constants | diff %t -

// A splat beside an argument: the argument stays behind a smaller barrier.
// CHECK-LABEL: func.func public @a_mask_beside_an_argument
func.func public @a_mask_beside_an_argument(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // CHECK-NEXT: %[[TRUE:.*]] = stablehlo.constant dense<true>
  %true = stablehlo.constant dense<true> : tensor<i1>
  // CHECK-NEXT: %[[MASK:.*]] = stablehlo.broadcast_in_dim %[[TRUE]]
  %mask = stablehlo.broadcast_in_dim %true, dims = [] : (tensor<i1>) -> tensor<4x4xi1>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %arg0 : tensor<4x4xf32>
  %0:2 = stablehlo.optimization_barrier %x, %mask : tensor<4x4xf32>, tensor<4x4xi1>
  // CHECK-NEXT: %[[R:.*]] = stablehlo.select %[[MASK]], %[[B]], %arg0
  %1 = stablehlo.select %0#1, %0#0, %x : tensor<4x4xi1>, tensor<4x4xf32>
  // CHECK-NEXT: return %[[R]]
  return %1 : tensor<4x4xf32>
}

// Light work on iotas and constants, a causal mask, is as good as a constant.
// CHECK-LABEL: func.func public @a_causal_mask
func.func public @a_causal_mask(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<4x4xi32>
  %columns = stablehlo.iota dim = 1 : tensor<4x4xi32>
  // CHECK: %[[MASK:.*]] = stablehlo.compare GE
  %mask = stablehlo.compare GE, %rows, %columns : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %arg0 : tensor<4x4xf32>
  %0:2 = stablehlo.optimization_barrier %mask, %x : tensor<4x4xi1>, tensor<4x4xf32>
  // CHECK-NEXT: stablehlo.select %[[MASK]], %[[B]], %arg0
  %1 = stablehlo.select %0#0, %0#1, %x : tensor<4x4xi1>, tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}

// Between two that stay: both keep their place.
// CHECK-LABEL: func.func public @a_constant_between_two_arguments
func.func public @a_constant_between_two_arguments(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.constant dense<2.0
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  // CHECK-NEXT: %[[B:.*]]:2 = stablehlo.optimization_barrier %arg0, %arg1
  %0:3 = stablehlo.optimization_barrier %x, %c, %y : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  // CHECK-NEXT: %[[S:.*]] = stablehlo.subtract %[[B]]#0, %[[B]]#1
  %1 = stablehlo.subtract %0#0, %0#2 : tensor<4xf32>
  // CHECK-NEXT: stablehlo.multiply %[[S]], %[[C]]
  %2 = stablehlo.multiply %1, %0#1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// A barrier that loses its last operand goes.
// CHECK-LABEL: func.func public @nothing_but_constants
func.func public @nothing_but_constants(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.constant dense<2.0
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0 = stablehlo.optimization_barrier %c : tensor<4xf32>
  // CHECK-NEXT: stablehlo.add %[[C]], %arg0
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Behind two barriers: both let it go in one run.
// CHECK-LABEL: func.func public @a_constant_behind_two_barriers
func.func public @a_constant_behind_two_barriers(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.constant dense<2.0
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  // CHECK-NEXT: %[[A:.*]] = stablehlo.optimization_barrier %arg0 : tensor<4xf32>
  %0:2 = stablehlo.optimization_barrier %x, %c : tensor<4xf32>, tensor<4xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %[[A]] : tensor<4xf32>
  %1:2 = stablehlo.optimization_barrier %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
  // CHECK-NEXT: %[[S:.*]] = stablehlo.add %[[B]], %[[C]]
  %2 = stablehlo.add %1#0, %1#1 : tensor<4xf32>
  // CHECK-NEXT: return %[[S]]
  return %2 : tensor<4xf32>
}

// The smaller barrier has the attributes of the one that it replaces.
// CHECK-LABEL: func.func public @a_barrier_with_attributes
func.func public @a_barrier_with_attributes(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.constant dense<2.0
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier
  // CHECK-SAME: {mhlo.frontend_attributes = {_scheduling_group_id = "1"}} %arg0
  // CHECK-SAME: : tensor<4xf32>
  %0:2 = stablehlo.optimization_barrier {mhlo.frontend_attributes = {_scheduling_group_id = "1"}} %x, %c : tensor<4xf32>, tensor<4xf32>
  // CHECK-NEXT: stablehlo.add %[[B]], %[[C]]
  %1 = stablehlo.add %0#0, %0#1 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// In a loop's body, a constant that comes in as an invariant carry. The carry is too small to free.
// CHECK-LABEL: func.func public @an_invariant_carry_behind_a_barrier
func.func public @an_invariant_carry_behind_a_barrier(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  // CHECK: stablehlo.while(%{{.*}} = %{{.*}}, %[[X:.*]] = %arg0, %[[K:.*]] = %{{.*}})
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %k = %c) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
    // CHECK: } do {
  } do {
    // CHECK-NEXT: %[[B:.*]] = stablehlo.optimization_barrier %[[X]] : tensor<4xf32>
    %1:2 = stablehlo.optimization_barrier %a, %k : tensor<4xf32>, tensor<4xf32>
    %2 = stablehlo.add %1#0, %1#1 : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: stablehlo.add %[[B]], %[[K]]
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2, %k : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
