// What drop-constraints drops.
// RUN: hloom-opt %s -p drop-constraints --split-input-file -o %t && filecheck %s < %t
// Twice is once.
// RUN: hloom-opt %t -p drop-constraints --split-input-file | diff %t -

sdy.mesh @mesh = <["d"=2, "e"=2, "one"=1]>

// Behind each operation, and in a row.
// CHECK-LABEL: func.func public @main
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
  // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %arg0
  %0 = stablehlo.tanh %x : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"d"}, {}]> : tensor<8x4xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"d"}, {}]> : tensor<8x4xf32>
  // CHECK-NEXT: %[[S:.*]] = stablehlo.sine %[[T]]
  %3 = stablehlo.sine %2 : tensor<8x4xf32>
  // What is replicated expressly may be so by default, and an axis of one device splits nothing.
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %4 = sdy.sharding_constraint %c <@mesh, [], replicated={"d"}> : tensor<f32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
  %6 = sdy.sharding_constraint %5 <@mesh, [{"d", "one"}, {}]> : tensor<8x4xf32>
  // CHECK-NOT: sharding_constraint
  %7 = stablehlo.add %3, %6 : tensor<8x4xf32>
  // CHECK: return
  return %7 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2, "one"=1]>

// An open dimension may be split, and this one is: by what the other operand says.
// CHECK-LABEL: func.func public @main
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"e"}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"e"}]>}) {
  // CHECK-NEXT: %[[T:.*]] = stablehlo.tanh %arg0
  %0 = stablehlo.tanh %x : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"d", ?}, {?}]> : tensor<8x4xf32>
  // CHECK-NEXT: return %[[T]]
  return %1 : tensor<8x4xf32>
}

// -----

sdy.mesh @single = <["d"=1]>

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: return %arg0
  %0 = sdy.sharding_constraint %x <@single, [{"d"}, {}]> : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2, "one"=1]>

// What a loop stacks, what it starts from and what comes of it.
// CHECK-LABEL: func.func public @main
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<3x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"d"}, {}]>}) {
  // CHECK-NOT: sharding_constraint
  // CHECK: return
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %i = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<3x8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"d"}, {}]> : tensor<3x8x4xf32>
  %2:3 = stablehlo.while(%n = %i, %h = %x, %stack = %1) : tensor<i32>, tensor<8x4xf32>, tensor<3x8x4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %3 = stablehlo.compare LT, %n, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  } do {
    %o = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %3 = stablehlo.sine %h : tensor<8x4xf32>
    %4 = sdy.sharding_constraint %3 <@mesh, [{"d"}, {}]> : tensor<8x4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [1, 2] : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
    %6 = sdy.sharding_constraint %5 <@mesh, [{}, {"d"}, {}]> : tensor<1x8x4xf32>
    %7 = stablehlo.dynamic_update_slice %stack, %6, %n, %o, %o : (tensor<3x8x4xf32>, tensor<1x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8x4xf32>
    %8 = sdy.sharding_constraint %7 <@mesh, [{}, {"d"}, {}]> : tensor<3x8x4xf32>
    %9 = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %9, %4, %8 : tensor<i32>, tensor<8x4xf32>, tensor<3x8x4xf32>
  }
  %10 = sdy.sharding_constraint %2#2 <@mesh, [{}, {"d"}, {}]> : tensor<3x8x4xf32>
  return %10 : tensor<3x8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2, "one"=1]>

// In a shard_map over one of two axes the other one is left.
// CHECK-LABEL: func.func public @main
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"e"}]>}) -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {"e"}]>}) {
  // CHECK-NOT: sharding_constraint
  // CHECK: sdy.return
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"d"}, {"e"}]>] out_shardings=[<@mesh, [{"d"}, {"e"}]>] manual_axes={"d"} (%y: tensor<4x4xf32>) {
    %1 = sdy.sharding_constraint %y <@mesh, [{}, {"e"}]> : tensor<4x4xf32>
    %2 = stablehlo.sine %1 : tensor<4x4xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"e"}]> : tensor<4x4xf32>
    sdy.return %3 : tensor<4x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

sdy.mesh @mesh = <["d"=2, "e"=2, "one"=1]>

// The sum over devices that no product reads: the gradient of a weight.
// CHECK-LABEL: func.func public @main
func.func public @main(
    %x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  // CHECK-NEXT: %[[G:.*]] = stablehlo.dot_general
  // CHECK-NEXT: return %[[G]]
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
