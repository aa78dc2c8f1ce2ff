// What cse merges.
// RUN: hloom-opt %s -p cse -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p cse | diff %t -

// Equal operations, and then those that read them.
// CHECK-LABEL: func.func public @one_after_the_other
func.func public @one_after_the_other(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.subtract %x, %y : tensor<4xf32> loc("jvp()/sub")
  %1 = stablehlo.exponential %0 : tensor<4xf32>
  // CHECK-NEXT: %[[S:.*]] = stablehlo.subtract %arg0, %arg1
  %2 = stablehlo.subtract %x, %y : tensor<4xf32> loc("transpose(jvp())/sub")
  // CHECK-NEXT: %[[E:.*]] = stablehlo.exponential %[[S]]
  %3 = stablehlo.exponential %2 : tensor<4xf32>
  // CHECK-NEXT: %[[M:.*]] = stablehlo.multiply %[[E]], %[[E]]
  %4 = stablehlo.multiply %1, %3 : tensor<4xf32>
  // CHECK-NEXT: return %[[M]]
  return %4 : tensor<4xf32>
}

// Constants and iotas have no operands to tell them apart.
// CHECK-LABEL: func.func public @constants
func.func public @constants() -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT: %[[C:.*]] = stablehlo.constant dense<1.0
  %0 = stablehlo.constant dense<1.0> : tensor<4xf32>
  // CHECK-NEXT: %[[I:.*]] = stablehlo.iota dim = 0
  %1 = stablehlo.iota dim = 0 : tensor<4xf32>
  // CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[C]], %[[I]]
  %2 = stablehlo.add %0, %1 : tensor<4xf32>
  %3 = stablehlo.constant dense<1.0> : tensor<4xf32>
  %4 = stablehlo.iota dim = 0 : tensor<4xf32>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.multiply %[[C]], %[[I]]
  %5 = stablehlo.multiply %3, %4 : tensor<4xf32>
  // CHECK-NEXT: return %[[A]], %[[B]]
  return %2, %5 : tensor<4xf32>, tensor<4xf32>
}

// Reductions merge by what their bodies compute, whatever the values in there are called.
// CHECK-LABEL: func.func public @reductions_with_equal_bodies
func.func public @reductions_with_equal_bodies(%x: tensor<4xf32>) -> (tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %2 = stablehlo.abs %b : tensor<f32>
      %3 = stablehlo.add %a, %2 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }
  // CHECK: %[[R:.*]] = stablehlo.reduce(%arg0
  %1 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    reducer(%sum: tensor<f32>, %next: tensor<f32>) {
      %size = stablehlo.abs %next : tensor<f32>
      %total = stablehlo.add %sum, %size : tensor<f32>
      stablehlo.return %total : tensor<f32>
    }
  // CHECK-NOT: stablehlo.reduce
  // CHECK: return %[[R]], %[[R]]
  return %0, %1 : tensor<f32>, tensor<f32>
}

// Also where the body itself holds equal operations, which merge as well.
// CHECK-LABEL: func.func public @reductions_with_equal_rows
func.func public @reductions_with_equal_rows(%x: tensor<8xf32>) -> (tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %2 = stablehlo.maximum %a, %b : tensor<f32>
      %3 = stablehlo.maximum %a, %b : tensor<f32>
      %4 = stablehlo.add %3, %2 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }
  // CHECK: %[[R:.*]] = stablehlo.reduce(%arg0
  %1 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %2 = stablehlo.maximum %a, %b : tensor<f32>
      %3 = stablehlo.maximum %a, %b : tensor<f32>
      %4 = stablehlo.add %3, %2 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }
  // CHECK-NOT: stablehlo.reduce
  // CHECK: return %[[R]], %[[R]]
  return %0, %1 : tensor<f32>, tensor<f32>
}

// In the body of a loop: the merged operations are in one block as well.
// CHECK-LABEL: func.func public @in_the_body_of_a_loop
func.func public @in_the_body_of_a_loop(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.while(%a = %x) : tensor<f32>
  cond {
    %big = stablehlo.constant dense<9.0> : tensor<f32>
    %1 = stablehlo.compare LT, %a, %big : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
    // CHECK: } do {
  } do {
    %1 = stablehlo.sine %a : tensor<f32>
    // CHECK-NEXT: %[[S:.*]] = stablehlo.sine %{{.*}}
    %2 = stablehlo.sine %a : tensor<f32>
    // CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[S]], %[[S]]
    %3 = stablehlo.add %1, %2 : tensor<f32>
    // CHECK-NEXT: stablehlo.return %[[A]]
    stablehlo.return %3 : tensor<f32>
  }
  return %0 : tensor<f32>
}

// Within a branch, where the operands stand outside and are merged there.
// CHECK-LABEL: func.func public @operands_merged_outside
func.func public @operands_merged_outside(%x: tensor<4xf32>, %i: tensor<i32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32>
  // CHECK-NEXT: %[[S:.*]] = stablehlo.sine %arg0
  %1 = stablehlo.sine %x : tensor<4xf32>
  // CHECK-NEXT: "stablehlo.case"(%arg1) ({
  %2 = "stablehlo.case"(%i) ({
    %3 = stablehlo.cosine %0 : tensor<4xf32>
    // CHECK-NEXT: %[[C:.*]] = stablehlo.cosine %[[S]]
    %4 = stablehlo.cosine %1 : tensor<4xf32>
    // CHECK-NEXT: %[[A:.*]] = stablehlo.add %[[C]], %[[C]]
    %5 = stablehlo.add %3, %4 : tensor<4xf32>
    // CHECK-NEXT: stablehlo.return %[[A]]
    stablehlo.return %5 : tensor<4xf32>
    // CHECK-NEXT: }, {
  }, {
    // CHECK-NEXT: stablehlo.return %[[S]]
    stablehlo.return %1 : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// The must-not-change case of this file: same operands, another attribute.
// CHECK-LABEL: func.func public @other_attributes
func.func public @other_attributes(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xi1>, tensor<4xi1>) {
  // CHECK-NEXT: %[[A:.*]] = stablehlo.compare LT, %arg0, %arg1
  %0 = stablehlo.compare LT, %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  // CHECK-NEXT: %[[B:.*]] = stablehlo.compare GT, %arg0, %arg1
  %1 = stablehlo.compare GT, %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  // CHECK-NEXT: return %[[A]], %[[B]]
  return %0, %1 : tensor<4xi1>, tensor<4xi1>
}
