// What free-constants leaves as it was.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p "free-constants{min_bytes=16}" | diff %t -

sdy.mesh @mesh = <["devices"=2]>

// An argument and what follows from it.
func.func public @barriers_over_arguments(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  %1:2 = stablehlo.optimization_barrier %x, %0 : tensor<4xf32>, tensor<4xf32>
  %2 = stablehlo.add %1#0, %1#1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// Work on constants that is not light: no fusion would do it for nothing.
func.func public @heavy_work_on_constants(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.iota dim = 0 : tensor<4xf32>
  %1 = stablehlo.sine %0 : tensor<4xf32>
  %2:2 = stablehlo.optimization_barrier %x, %1 : tensor<4xf32>, tensor<4xf32>
  %3 = stablehlo.add %2#0, %2#1 : tensor<4xf32>
  return %3 : tensor<4xf32>
}

// A carry that begins as a constant and changes.
func.func public @a_carry_that_changes(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %zero, %k = %c, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %a, %k : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %a, %1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#2 : tensor<4xf32>
}

// An invariant carry that begins as an argument.
func.func public @an_invariant_argument(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %k = %y, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %a, %k : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %k, %1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#2 : tensor<4xf32>
}

// A loop whose shardings are listed one a carry keeps its carries.
func.func public @a_sharding_for_each_carry(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<2.0> : tensor<4xf32>
  %0:3 = stablehlo.while(%i = %zero, %k = %c, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<4xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"devices"}]>, <@mesh, [{"devices"}]>]>}
  cond {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %a, %k : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %2, %k, %1 : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %0#2 : tensor<4xf32>
}

// A constant that the loop's condition reads as well.
func.func public @a_constant_of_the_condition(%x: tensor<4xi32>) -> tensor<4xi32> {
  %c = stablehlo.constant dense<100> : tensor<4xi32>
  %0:2 = stablehlo.while(%k = %c, %a = %x) : tensor<4xi32>, tensor<4xi32>
  cond {
    %true = stablehlo.constant dense<true> : tensor<i1>
    %1 = stablehlo.compare LT, %a, %k : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %2 = stablehlo.reduce(%1 init: %true) applies stablehlo.and across dimensions = [0] : (tensor<4xi1>, tensor<i1>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %1 = stablehlo.add %a, %k : tensor<4xi32>
    stablehlo.return %k, %1 : tensor<4xi32>, tensor<4xi32>
  }
  return %0#1 : tensor<4xi32>
}

// A quarter of its bytes.
func.func public @an_invariant_carry_of_values_that_are_not_small(%x: tensor<4x64xf32>, %small: tensor<64xf32>) -> tensor<4x64xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %wide = stablehlo.broadcast_in_dim %small, dims = [1] : (tensor<64xf32>) -> tensor<4x64xf32>
  %mask = stablehlo.negate %wide : tensor<4x64xf32>
  %0:3 = stablehlo.while(%i = %c, %y = %x, %m = %mask) : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %m, %y : tensor<4x64xf32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %2, %m : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    }
  return %0#1 : tensor<4x64xf32>
}

func.func public @an_invariant_carry_of_work_that_is_not_light(%x: tensor<4x64xf32>, %small: tensor<4xf32>) -> tensor<4x64xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %wide = stablehlo.broadcast_in_dim %small, dims = [0] : (tensor<4xf32>) -> tensor<4x64xf32>
  %mask = stablehlo.exponential %wide : tensor<4x64xf32>
  %0:3 = stablehlo.while(%i = %c, %y = %x, %m = %mask) : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %m, %y : tensor<4x64xf32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %2, %m : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    }
  return %0#1 : tensor<4x64xf32>
}

func.func public @a_carry_of_small_values_that_changes(%x: tensor<4x64xf32>, %small: tensor<4xf32>) -> tensor<4x64xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %wide = stablehlo.broadcast_in_dim %small, dims = [0] : (tensor<4xf32>) -> tensor<4x64xf32>
  %mask = stablehlo.negate %wide : tensor<4x64xf32>
  %0:3 = stablehlo.while(%i = %c, %y = %x, %m = %mask) : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %m, %y : tensor<4x64xf32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %2, %2 : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    }
  return %0#1 : tensor<4x64xf32>
}

// There it would be carried again.
func.func public @a_carry_of_small_values_that_a_loop_inside_reads(%x: tensor<4x64xf32>, %small: tensor<4xf32>) -> tensor<4x64xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %wide = stablehlo.broadcast_in_dim %small, dims = [0] : (tensor<4xf32>) -> tensor<4x64xf32>
  %mask = stablehlo.negate %wide : tensor<4x64xf32>
  %0:3 = stablehlo.while(%i = %c, %y = %x, %m = %mask) : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    cond {
      %n = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %m, %y : tensor<4x64xf32>
      %o = stablehlo.constant dense<0> : tensor<i32>
      %r:3 = stablehlo.while(%j = %o, %z = %2, %k = %m) : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
        cond {
          %n = stablehlo.constant dense<4> : tensor<i32>
          %5 = stablehlo.compare LT, %j, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %5 : tensor<i1>
        } do {
          %one_1 = stablehlo.constant dense<1> : tensor<i32>
          %5 = stablehlo.add %k, %z : tensor<4x64xf32>
          %6 = stablehlo.add %j, %one_1 : tensor<i32>
          stablehlo.return %6, %5, %k : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
        }
      %3 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %3, %r#1, %m : tensor<i32>, tensor<4x64xf32>, tensor<4x64xf32>
    }
  return %0#1 : tensor<4x64xf32>
}
