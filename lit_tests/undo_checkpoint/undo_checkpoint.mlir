// What a checkpoint computes again is computed once: in straight lines, and in loops through a stack.
// RUN: hloom-opt %s -p undo-checkpoint -o %t && filecheck %s --input-file %t
// RUN: hloom-opt %t -p cse -o %t.merged && hloom-opt %t.merged -p undo-checkpoint | diff %t.merged -

// The reader of the second product reads the first one, and the barrier is gone.
// CHECK-LABEL: func.func public @straight
// CHECK-NEXT:    %[[PRODUCT:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK-NEXT:    %[[FIRST:.*]] = stablehlo.tanh %[[PRODUCT]]
// CHECK-NEXT:    %[[GRADIENT:.*]] = stablehlo.negate %[[FIRST]]
// CHECK-NEXT:    %[[RESULT:.*]] = stablehlo.multiply %[[FIRST]], %[[GRADIENT]]
// CHECK-NEXT:    return %[[RESULT]]
func.func public @straight(%x: tensor<256x256xf32>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %1 = stablehlo.tanh %0 : tensor<256x256xf32>
  %2 = stablehlo.negate %1 : tensor<256x256xf32>
  %3:3 = stablehlo.optimization_barrier %x, %w, %2
      : tensor<256x256xf32>, tensor<256x256xf32>, tensor<256x256xf32>
  %4 = stablehlo.dot_general %3#0, %3#1, contracting_dims = [1] x [0]
      : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %5 = stablehlo.tanh %4 : tensor<256x256xf32>
  %6 = stablehlo.multiply %5, %3#2 : tensor<256x256xf32>
  return %6 : tensor<256x256xf32>
}

// The forward loop stacks what the backward loop reads, no longer what that was made of.
// CHECK-LABEL: func.func public @loops
// CHECK:         %[[FORWARD:.*]]:3 = stablehlo.while
// CHECK:         } do {
// CHECK:           %[[PRODUCT:.*]] = stablehlo.dot_general %[[CARRY:.*]], %arg1
// CHECK-NEXT:      %[[SINE:.*]] = stablehlo.sine %[[PRODUCT]]
// CHECK:           %[[SLICE:.*]] = stablehlo.reshape %[[SINE]]
// CHECK-NEXT:      stablehlo.dynamic_update_slice %{{.*}}, %[[SLICE]]
// CHECK-NOT:       stablehlo.dynamic_update_slice
// CHECK:         stablehlo.while({{.*}} = %[[FORWARD]]#2)
// CHECK:         } do {
// CHECK:           %[[INDEX:.*]] = stablehlo.subtract
// CHECK:           %[[READ:.*]] = stablehlo.dynamic_slice %{{.*}}, %[[INDEX]]
// CHECK-NEXT:      %[[STORED:.*]] = stablehlo.reshape %[[READ]]
// CHECK-NEXT:      stablehlo.multiply %{{.*}}, %[[STORED]]
// CHECK-NOT:       stablehlo.dot_general
func.func public @loops(%x: tensor<256x256xf32>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %empty = stablehlo.constant dense<0.0> : tensor<6x256x256xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %empty)
      : tensor<i32>, tensor<256x256xf32>, tensor<6x256x256xf32>
  cond {
    %n = stablehlo.constant dense<6> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %z = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0]
        : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
    %2 = stablehlo.sine %1 : tensor<256x256xf32>
    %3 = stablehlo.reshape %c : (tensor<256x256xf32>) -> tensor<1x256x256xf32>
    %4 = stablehlo.dynamic_update_slice %s, %3, %i, %z, %z
        : (tensor<6x256x256xf32>, tensor<1x256x256xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x256x256xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %2, %4 : tensor<i32>, tensor<256x256xf32>, tensor<6x256x256xf32>
  }
  %6:3 = stablehlo.while(%i = %zero, %g = %0#1, %s = %0#2)
      : tensor<i32>, tensor<256x256xf32>, tensor<6x256x256xf32>
  cond {
    %n = stablehlo.constant dense<6> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %five = stablehlo.constant dense<5> : tensor<i32>
    %z = stablehlo.constant dense<0> : tensor<i32>
    %j = stablehlo.subtract %five, %i : tensor<i32>
    %7 = stablehlo.dynamic_slice %s, %j, %z, %z, sizes = [1, 256, 256]
        : (tensor<6x256x256xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x256x256xf32>
    %8 = stablehlo.reshape %7 : (tensor<1x256x256xf32>) -> tensor<256x256xf32>
    %9:2 = stablehlo.optimization_barrier %8, %g : tensor<256x256xf32>, tensor<256x256xf32>
    %10 = stablehlo.dot_general %9#0, %w, contracting_dims = [1] x [0]
        : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
    %11 = stablehlo.sine %10 : tensor<256x256xf32>
    %12 = stablehlo.multiply %9#1, %11 : tensor<256x256xf32>
    %13 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %13, %12, %s : tensor<i32>, tensor<256x256xf32>, tensor<6x256x256xf32>
  }
  return %6#1 : tensor<256x256xf32>
}
