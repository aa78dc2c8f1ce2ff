// Equal operations that cse leaves apart.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p cse | diff %t -

// Barriers: what follows one is to be recomputed.
func.func public @barriers(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.optimization_barrier %x : tensor<4xf32>
  %1 = stablehlo.sine %0 : tensor<4xf32>
  %2 = stablehlo.optimization_barrier %x : tensor<4xf32>
  %3 = stablehlo.sine %2 : tensor<4xf32>
  return %1, %3 : tensor<4xf32>, tensor<4xf32>
}

// Blocks: a constant of a loop's body would be carried into the loop from outside.
func.func public @a_constant_within_and_without(%x: tensor<4xf32>) -> tensor<4xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %0 = stablehlo.add %x, %one : tensor<4xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.while(%i = %zero, %a = %0) : tensor<i32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %ones = stablehlo.constant dense<1.0> : tensor<4xf32>
    %2 = stablehlo.add %a, %ones : tensor<4xf32>
    %step = stablehlo.constant dense<1> : tensor<i32>
    %3 = stablehlo.add %i, %step : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<4xf32>
  }
  return %1#1 : tensor<4xf32>
}

// Two branches, of which one runs.
func.func public @two_branches(%x: tensor<4xf32>, %p: tensor<i1>) -> tensor<4xf32> {
  %0 = "stablehlo.if"(%p) ({
    %1 = stablehlo.sine %x : tensor<4xf32>
    stablehlo.return %1 : tensor<4xf32>
  }, {
    %1 = stablehlo.sine %x : tensor<4xf32>
    stablehlo.return %1 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// Reductions that do something else with the same operands, or the same the other way round.
func.func public @reductions_with_other_bodies(%x: tensor<4xf32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.maximum across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %1 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
   reducer(%a: tensor<f32>, %b: tensor<f32>) {
    %3 = stablehlo.subtract %a, %b : tensor<f32>
    stablehlo.return %3 : tensor<f32>
  }
  %2 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
   reducer(%a: tensor<f32>, %b: tensor<f32>) {
    %3 = stablehlo.subtract %b, %a : tensor<f32>
    stablehlo.return %3 : tensor<f32>
  }
  return %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}

// Reductions whose bodies differ in a complex constant, which the bindings cannot read.
func.func public @reductions_with_complex_constants(%x: tensor<8xcomplex<f32>>) -> (tensor<complex<f32>>, tensor<complex<f32>>) {
  %zero = stablehlo.constant dense<(0.0,0.0)> : tensor<complex<f32>>
  %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<8xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
   reducer(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>) {
    %one = stablehlo.constant dense<(1.0,0.0)> : tensor<complex<f32>>
    %2 = stablehlo.multiply %b, %one : tensor<complex<f32>>
    %3 = stablehlo.add %a, %2 : tensor<complex<f32>>
    stablehlo.return %3 : tensor<complex<f32>>
  }
  %1 = stablehlo.reduce(%x init: %zero) across dimensions = [0] : (tensor<8xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
   reducer(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>) {
    %two = stablehlo.constant dense<(2.0,0.0)> : tensor<complex<f32>>
    %2 = stablehlo.multiply %b, %two : tensor<complex<f32>>
    %3 = stablehlo.add %a, %2 : tensor<complex<f32>>
    stablehlo.return %3 : tensor<complex<f32>>
  }
  return %0, %1 : tensor<complex<f32>>, tensor<complex<f32>>
}

// Whatever is expensive or has an effect: not merged here, but by XLA where that is right.
func.func public @products_and_effects(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.custom_call @count(%0) {has_side_effect = true}
      : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.custom_call @count(%1) {has_side_effect = true}
      : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %2, %3 : tensor<4x4xf32>, tensor<4x4xf32>
}

// Zeros of either sign, and NaNs of either payload, are different constants.
func.func public @constants_that_compare_equal(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) {
  %0 = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.constant dense<-0.0> : tensor<f32>
  %2 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
  %3 = stablehlo.constant dense<0x7FC00001> : tensor<f32>
  return %0, %1, %2, %3 : tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>
}
