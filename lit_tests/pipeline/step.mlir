sdy.mesh @mesh = <["stage"=2]>

func.func public @step(%x: tensor<8x4xf32>, %w: tensor<4x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {}, {}]>}) -> (tensor<8x4xf32>, tensor<4x4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %states = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x8x4xf32>
  %sums = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4x4x4xf32>
  %0:4 = stablehlo.while(%i = %zero, %a = %x, %s = %states, %ws = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x8x4xf32>, tensor<4x4x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %4 = stablehlo.tanh %3 : tensor<8x4xf32>
    %5 = stablehlo.reshape %4 : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
    %6 = stablehlo.dynamic_update_slice %s, %5, %i, %zero, %zero : (tensor<4x8x4xf32>, tensor<1x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x4xf32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %4, %6, %ws : tensor<i32>, tensor<8x4xf32>, tensor<4x8x4xf32>, tensor<4x4x4xf32>
  }
  %8:5 = stablehlo.while(%i = %zero, %d = %0#1, %g = %sums, %ws = %w, %s = %0#2) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>
  cond {
    %p = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %n = stablehlo.subtract %three, %i : tensor<i32>
    %9 = stablehlo.dynamic_slice %ws, %n, %zero, %zero, sizes = [1, 4, 4] : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %10 = stablehlo.reshape %9 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.dynamic_slice %s, %n, %zero, %zero, sizes = [1, 8, 4] : (tensor<4x8x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x4xf32>
    %12 = stablehlo.reshape %11 : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
    %13 = stablehlo.multiply %d, %12 : tensor<8x4xf32>
    %14 = stablehlo.dot_general %12, %13, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %15 = stablehlo.reshape %14 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %16 = stablehlo.dynamic_update_slice %g, %15, %n, %zero, %zero : (tensor<4x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x4x4xf32>
    %17 = stablehlo.dot_general %13, %10, contracting_dims = [1] x [1] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %18 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %18, %17, %16, %ws, %s : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>, tensor<4x4x4xf32>, tensor<4x8x4xf32>
  }
  return %8#1, %8#2 : tensor<8x4xf32>, tensor<4x4x4xf32>
}
