// What unroll writes out.
// RUN: hloom-opt %s -p "unroll{loops=all}" -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p "unroll{loops=all}" | diff %t -

// The counter is a value like any other; what is read of outside the loop stays.
// CHECK-LABEL: func.func public @two_iterations(%arg0: tensor<8xf32>, %arg1: tensor<8xf32>)
func.func public @two_iterations(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<i32>) {
  // CHECK-NEXT: %[[Z:.*]] = stablehlo.constant dense<0>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<8xf32>
  cond {
    // CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant dense<1>
    %n = stablehlo.constant dense<2> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    // CHECK-NEXT: %[[A:.*]] = stablehlo.add %arg0, %arg1
    // CHECK-NEXT: %[[I:.*]] = stablehlo.add %[[Z]], %[[ONE]]
    // CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant dense<1>
    %one = stablehlo.constant dense<1> : tensor<i32>
    // CHECK-NEXT: %[[B:.*]] = stablehlo.add %[[A]], %arg1
    %1 = stablehlo.add %c, %y : tensor<8xf32>
    // CHECK-NEXT: %[[J:.*]] = stablehlo.add %[[I]], %[[ONE]]
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %1 : tensor<i32>, tensor<8xf32>
  }
  // CHECK-NEXT: return %[[B]], %[[J]]
  return %0#1, %0#0 : tensor<8xf32>, tensor<i32>
}

// Carries that change places.
// CHECK-LABEL: func.func public @exchange(%arg0: tensor<f32>, %arg1: tensor<f32>)
func.func public @exchange(%x: tensor<f32>, %y: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %a = %x, %b = %y) : tensor<i32>, tensor<f32>, tensor<f32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %1, %b, %a : tensor<i32>, tensor<f32>, tensor<f32>
  }
  // CHECK-NOT: stablehlo.while
  // CHECK: return %arg1, %arg0
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}
