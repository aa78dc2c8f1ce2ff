// What no budget repeats, not even the floor. The first programs are the last one of
// budget_straight_line.mlir with other work in the place of its generator: it makes something wide
// that the backward pass reads, and something wider comes and goes in between.
// RUN: hloom-opt %s --split-input-file --debug-info -o %t && \
// RUN:   hloom-opt %s -p "remat{min_bytes=0 budget=1B}" --split-input-file --debug-info | diff %t -

// A collective that runs twice could match another one on other devices.
func.func public @an_all_reduce(%x: tensor<8x64xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<8x64xf32>) -> tensor<8x64xf32> loc("jvp()/psum")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// So could one that gathers.
func.func public @an_all_gather(%x: tensor<4x64xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4x64xf32>) -> tensor<8x64xf32> loc("jvp()/all_gather")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// What a custom call does is not known.
func.func public @a_custom_call(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.custom_call @attention(%x, %w) : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("jvp()/ffi_call")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// A side effect happens once.
func.func public @a_side_effect(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.custom_call @callback(%x, %w) {has_side_effect = true}
      : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("jvp()/io_callback")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// What a token orders happens once.
func.func public @work_behind_a_token(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %token = stablehlo.create_token : !stablehlo.token loc("jvp()/create_token")
  %0:2 = stablehlo.custom_call @callback(%token, %x, %w) : (!stablehlo.token, tensor<8x8xf32>, tensor<8x64xf32>) -> (!stablehlo.token, tensor<8x64xf32>) loc("jvp()/io_callback")
  %1 = stablehlo.dot_general %0#1, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %0#1 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// A generator that keeps its state to itself gives other numbers the second time.
func.func public @a_stateful_generator(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %low = stablehlo.constant dense<0.0> : tensor<f32>
  %high = stablehlo.constant dense<1.0> : tensor<f32>
  %shape = stablehlo.constant dense<[8, 64]> : tensor<2xi64>
  %0 = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<8x64xf32> loc("jvp()/rng_uniform")
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %0 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// A loop is what its body is.
func.func public @a_collective_in_a_loop(%x: tensor<8x64xf32>, %w: tensor<8x64xf32>, %u: tensor<8x256xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %loop:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<8x64xf32>
  cond {
    %7 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %7 : tensor<i1>
  } do {
    %7 = stablehlo.custom_call @step(%c) : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %8 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %8, %7 : tensor<i32>, tensor<8x64xf32>
  } loc("jvp()/while")
  %1 = stablehlo.dot_general %loop#1, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x256xf32>) -> tensor<8x256xf32> loc("jvp()/dot")
  %3 = stablehlo.dot_general %2, %u, contracting_dims = [1] x [1] : (tensor<8x256xf32>, tensor<8x256xf32>) -> tensor<8x8xf32> loc("jvp()/dot")
  %4 = stablehlo.dot_general %3, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32> loc("transpose(jvp())/dot")
  %5 = stablehlo.multiply %4, %loop#1 : tensor<8x64xf32> loc("transpose(jvp())/mul")
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32> loc("transpose(jvp())/dot")
  return %6 : tensor<8x8xf32>
}

// -----

// The scan of budget_scan.mlir, whose product is summed over devices before it is stored.
func.func public @a_collective_in_a_scan(%x: tensor<8x8xf32>, %w: tensor<8x64xf32>, %g: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %last = stablehlo.constant dense<15> : tensor<i32>
  %trips = stablehlo.constant dense<16> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<16x8x64xf32>
  %0:3 = stablehlo.while(%i = %zero, %c = %x, %s = %zeros) : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %7 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
    %2 = "stablehlo.all_reduce"(%7) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %8 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %8 : tensor<f32>
    }) : (tensor<8x64xf32>) -> tensor<8x64xf32>
    %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
    %4 = stablehlo.reshape %2 : (tensor<8x64xf32>) -> tensor<1x8x64xf32>
    %5 = stablehlo.dynamic_update_slice %s, %4, %i, %zero, %zero : (tensor<16x8x64xf32>, tensor<1x8x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<16x8x64xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %3, %5 : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  } loc("jvp()/while")
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#2) : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %last, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, %zero, %zero, sizes = [1, 8, 64] : (tensor<16x8x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x64xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x8x64xf32>) -> tensor<8x64xf32>
    %5 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
    %6 = stablehlo.multiply %5, %4 : tensor<8x64xf32>
    %7 = stablehlo.dot_general %6, %w, contracting_dims = [1] x [1] : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x8xf32>
    %8 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %8, %7, %s : tensor<i32>, tensor<8x8xf32>, tensor<16x8x64xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<8x8xf32>
}
