// Pairs of loops that remat leaves as they were. In each the forward loop stacks what follows from its
// counter alone, and one thing is in the way; without it the stack would go, as in scan.mlir.
// RUN: hloom-opt %s --debug-info -o %t && \
// RUN:   hloom-opt %s -p "remat{min_bytes=0}" --debug-info | diff %t -

sdy.mesh @mesh = <["devices"=2]>

// The stack is a result of the program.
func.func public @the_stack_is_read_outside(%g: tensor<f32>) -> (tensor<f32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1, %0#1 : tensor<f32>, tensor<3xf32>
}

// The stack is read after the backward loop, as what the loop carried.
func.func public @the_backward_loop_passes_the_stack_on(%g: tensor<f32>) -> (tensor<f32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1, %1#2 : tensor<f32>, tensor<3xf32>
}

// The backward body reads all of the stack in each iteration.
func.func public @the_stack_is_read_whole(%g: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %9 = stablehlo.dot_general %s, %s, contracting_dims = [0] x [0] : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
    %10 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.add %9, %10 : tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// The forward body reads what it has written so far.
func.func public @the_forward_body_reads_the_stack(%g: tensor<f32>) -> (tensor<f32>, tensor<1xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %none = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<1xf32>
  %0:3 = stablehlo.while(%i = %zero, %s = %zeros, %r = %none) : tensor<i32>, tensor<3xf32>, tensor<1xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %3 = stablehlo.exponential %2 : tensor<f32>
    %4 = stablehlo.reshape %3 : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.dynamic_update_slice %s, %4, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %7 = stablehlo.dynamic_slice %5, %zero, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %5, %7 : tensor<i32>, tensor<3xf32>, tensor<1xf32>
  } loc("jvp()/while")
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1, %0#2 : tensor<f32>, tensor<1xf32>
}

// How often the forward loop runs is not known.
func.func public @a_trip_count_that_an_argument_decides(%g: tensor<f32>, %n: tensor<i32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %0:2 = stablehlo.while(%i = %zero, %s = %zeros) : tensor<i32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
    %3 = stablehlo.exponential %2 : tensor<f32>
    %4 = stablehlo.reshape %3 : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.dynamic_update_slice %s, %4, %i : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    %6 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %6, %5 : tensor<i32>, tensor<3xf32>
  } loc("jvp()/while")
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// remat has been over the backward body.
func.func public @already_rematerialized(%g: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32> loc("transpose(jvp())/hloom.remat/mul")
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// A loop whose shardings are listed one a carry keeps its carries.
func.func public @a_sharding_for_each_carry(%g: tensor<f32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %0:2 = stablehlo.while(%i = %zero, %s = %zeros) : tensor<i32>, tensor<3xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{}]>]>}
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}
