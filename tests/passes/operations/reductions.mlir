// Operations with a small program inside: reductions, windows, sorts; and products.
func.func @reductions() -> (tensor<2xf32>, tensor<3xi32>, tensor<2xf32>, tensor<2xi32>) {
  %x = stablehlo.constant dense<[[3.0, 1.0, 2.0], [-1.0, 5.0, 0.5]]> : tensor<2x3xf32>
  %n = stablehlo.iota dim = 1 : tensor<2x3xi32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
  %1 = stablehlo.reduce(%n init: %none) applies stablehlo.maximum across dimensions = [0] : (tensor<2x3xi32>, tensor<i32>) -> tensor<3xi32>
  %2:2 = stablehlo.reduce(%x init: %least), (%n init: %none) across dimensions = [1] : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
    reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<i32>, %d: tensor<i32>) {
    %more = stablehlo.compare GT, %a, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %more, %a, %c : tensor<i1>, tensor<f32>
    %at = stablehlo.select %more, %b, %d : tensor<i1>, tensor<i32>
    stablehlo.return %v, %at : tensor<f32>, tensor<i32>
  }
  return %0, %1, %2#0, %2#1 : tensor<2xf32>, tensor<3xi32>, tensor<2xf32>, tensor<2xi32>
}

// -----

func.func @windows() -> (tensor<2x2xf32>, tensor<4x4xf32>) {
  %x = stablehlo.constant dense<[[1.0, 2.0, 3.0, 4.0], [8.0, 7.0, 6.0, 5.0], [0.0, 1.0, 0.0, 1.0], [2.0, 9.0, 2.0, 3.0]]> : tensor<4x4xf32>
  %g = stablehlo.constant dense<[[1.0, 10.0], [100.0, 1000.0]]> : tensor<2x2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<4x4xf32>, tensor<f32>) -> tensor<2x2xf32>
  %1 = "stablehlo.select_and_scatter"(%x, %g, %zero) <{window_dimensions = array<i64: 2, 2>, window_strides = array<i64: 2, 2>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<4x4xf32>, tensor<2x2xf32>, tensor<f32>) -> tensor<4x4xf32>
  return %0, %1 : tensor<2x2xf32>, tensor<4x4xf32>
}

// -----

func.func @sorts() -> (tensor<5xi32>, tensor<5xf32>) {
  %k = stablehlo.constant dense<[3, 1, 2, 5, 4]> : tensor<5xi32>
  %v = stablehlo.constant dense<[0.3, 0.1, 0.2, 0.5, 0.4]> : tensor<5xf32>
  %0:2 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<f32>):
    %less = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<5xi32>, tensor<5xf32>) -> (tensor<5xi32>, tensor<5xf32>)
  return %0#0, %0#1 : tensor<5xi32>, tensor<5xf32>
}

// -----

func.func @products() -> (tensor<2x2xf32>, tensor<2x2xf32>, tensor<1x2x2x1xf32>) {
  %x = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %y = stablehlo.constant dense<[[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]]> : tensor<3x2xf32>
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32> loc("jvp()/dot_general")
  %1 = stablehlo.tanh %0 : tensor<2x2xf32> loc("jvp()/tanh")
  %2 = stablehlo.dot_general %1, %x, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2x3xf32>) -> tensor<2x3xf32> loc("jvp()/dot_general")
  %3 = stablehlo.dot_general %2, %y, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32> loc("transpose(jvp())/dot_general")
  %4 = stablehlo.multiply %3, %1 : tensor<2x2xf32> loc("transpose(jvp())/mul")
  %i = stablehlo.reshape %x : (tensor<2x3xf32>) -> tensor<1x2x3x1xf32>
  %k = stablehlo.constant dense<[[[[1.0]], [[-1.0]]]]> : tensor<1x2x1x1xf32>
  %5 = stablehlo.convolution(%i, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x2x3x1xf32>, tensor<1x2x1x1xf32>) -> tensor<1x2x2x1xf32>
  return %0, %4, %5 : tensor<2x2xf32>, tensor<2x2xf32>, tensor<1x2x2x1xf32>
}

// -----

func.func @main() -> tensor<1x2x2x1xf32> {
  %x = stablehlo.constant dense<[[[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]]]> : tensor<1x2x3x1xf32>
  %k = stablehlo.constant dense<[[[[1.0]], [[-1.0]]]]> : tensor<1x2x1x1xf32>
  %none = stablehlo.constant dense<0> : tensor<2x2xi32>
  %0 = "stablehlo.dynamic_conv"(%x, %k, %none) <{
    batch_group_count = 1 : i64, feature_group_count = 1 : i64,
    dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>
  }> : (tensor<1x2x3x1xf32>, tensor<1x2x1x1xf32>, tensor<2x2xi32>) -> tensor<1x2x2x1xf32>
  return %0 : tensor<1x2x2x1xf32>
}

// -----

// not interpreted: unsupported at the moment
func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>, tensor<3x2xf32>) {
  %0 = stablehlo.dot %x, %y : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
  %1 = "stablehlo.einsum"(%x, %y) <{einsum_config = "ab,bc->ac"}> : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
  %2 = "stablehlo.unary_einsum"(%x) <{einsum_config = "ab->ba"}> : (tensor<2x3xf32>) -> tensor<3x2xf32>
  return %0, %1, %2 : tensor<2x2xf32>, tensor<2x2xf32>, tensor<3x2xf32>
}

// -----

// not interpreted: unsupported at the moment
func.func @batch_norm() -> (tensor<2x2xf32>, tensor<2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) {
  %x = stablehlo.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  %one = stablehlo.constant dense<1.0> : tensor<2xf32>
  %two = stablehlo.constant dense<2.0> : tensor<2xf32>
  %0:3 = "stablehlo.batch_norm_training"(%x, %one, %two) <{epsilon = 0.5 : f32, feature_index = 1 : i64}> : (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>)
  %1 = "stablehlo.batch_norm_inference"(%x, %one, %two, %0#1, %0#2) <{epsilon = 0.5 : f32, feature_index = 1 : i64}> : (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
  %2:3 = "stablehlo.batch_norm_grad"(%x, %one, %0#1, %0#2, %1) <{epsilon = 0.5 : f32, feature_index = 1 : i64}> : (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>)
  return %0#0, %0#1, %1, %2#0 : tensor<2x2xf32>, tensor<2xf32>, tensor<2x2xf32>, tensor<2x2xf32>
}

// -----

// not interpreted: unsupported at the moment
func.func @main(%x: tensor<3x3xf32>, %b: tensor<3x1xf32>, %c: tensor<4xcomplex<f32>>) -> (tensor<3x3xf32>, tensor<3x1xf32>, tensor<4xcomplex<f32>>) {
  %0 = stablehlo.cholesky %x, lower = true : tensor<3x3xf32>
  %1 = "stablehlo.triangular_solve"(%x, %b) <{left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}> : (tensor<3x3xf32>, tensor<3x1xf32>) -> tensor<3x1xf32>
  %2 = stablehlo.fft %c, type = FFT, length = [4] : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  return %0, %1, %2 : tensor<3x3xf32>, tensor<3x1xf32>, tensor<4xcomplex<f32>>
}

// -----

// not interpreted: unsupported at the moment
func.func @main(%s: tensor<2xui64>, %a: tensor<f32>, %n: tensor<1xi32>) -> (tensor<2xui64>, tensor<4xui32>, tensor<4xf32>) {
  %0:2 = stablehlo.rng_bit_generator %s, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
  %shape = stablehlo.constant dense<4> : tensor<1xi64>
  %1 = stablehlo.rng %a, %a, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>
  return %0#0, %0#1, %1 : tensor<2xui64>, tensor<4xui32>, tensor<4xf32>
}
