// Pairs of loops that remat leaves as they were because of where the stack is written or read. In each
// the forward loop stacks what follows from its counter alone; see scan_unchanged.mlir.
// RUN: hloom-opt %s --debug-info -o %t && \
// RUN:   hloom-opt %s -p "remat{min_bytes=0}" --debug-info | diff %t -

// Two slices of one stack in an iteration, at different places.
func.func public @two_places_of_one_stack(%g: tensor<f32>) -> tensor<f32> {
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
    %7 = stablehlo.dynamic_slice %s, %k, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %8 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
    %9 = stablehlo.multiply %8, %4 : tensor<f32>
    %5 = stablehlo.multiply %c, %9 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// Read at the square of the counter.
func.func public @a_place_that_is_not_affine(%g: tensor<f32>) -> tensor<f32> {
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.multiply %k, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// A carry that is no counter says where to read.
func.func public @a_place_that_the_carry_decides(%g: tensor<f32>) -> tensor<f32> {
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
  %1:4 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1, %p = %two) : tensor<i32>, tensor<f32>, tensor<3xf32>, tensor<i32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %two, %p : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s, %2 : tensor<i32>, tensor<f32>, tensor<3xf32>, tensor<i32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// The first place read is one past the end, where dynamic_slice clamps.
func.func public @a_place_beyond_the_stack(%g: tensor<f32>) -> tensor<f32> {
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
  %1:3 = stablehlo.while(%k = %zero, %c = %g, %s = %0#1) : tensor<i32>, tensor<f32>, tensor<3xf32>
  cond {
    %2 = stablehlo.compare LT, %k, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.subtract %three, %k : tensor<i32>
    %3 = stablehlo.dynamic_slice %s, %2, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %4 = stablehlo.reshape %3 : (tensor<1xf32>) -> tensor<f32>
    %5 = stablehlo.multiply %c, %4 : tensor<f32>
    %6 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %6, %5, %s : tensor<i32>, tensor<f32>, tensor<3xf32>
  } loc("transpose(jvp())/while")
  return %1#1 : tensor<f32>
}

// The forward loop counts by two.
func.func public @written_at_every_other_place(%g: tensor<f32>) -> tensor<f32> {
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
    %6 = stablehlo.add %i, %two : tensor<i32>
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
