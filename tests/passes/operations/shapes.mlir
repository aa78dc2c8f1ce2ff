// Operations that move values, and those whose shapes are known only when they run.
func.func @moves() -> (tensor<3x2xi32>, tensor<6xi32>, tensor<2x6xi32>, tensor<4x5xi32>, tensor<2x3x2xi32>, tensor<1x2xi32>) {
  %x = stablehlo.iota dim = 0 : tensor<2x3xi32>
  %z = stablehlo.constant dense<7> : tensor<i32>
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
  %1 = stablehlo.reshape %x : (tensor<2x3xi32>) -> tensor<6xi32>
  %2 = stablehlo.reverse %x, dims = [1] : tensor<2x3xi32>
  %3 = stablehlo.concatenate %x, %2, dim = 1 : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x6xi32>
  %4 = stablehlo.pad %x, %z, low = [1, 0], high = [0, 0], interior = [1, 1] : (tensor<2x3xi32>, tensor<i32>) -> tensor<4x5xi32>
  %5 = stablehlo.broadcast_in_dim %0, dims = [1, 2] : (tensor<3x2xi32>) -> tensor<2x3x2xi32>
  %6 = stablehlo.slice %x [0:1, 0:3:2] : (tensor<2x3xi32>) -> tensor<1x2xi32>
  return %0, %1, %3, %4, %5, %6 : tensor<3x2xi32>, tensor<6xi32>, tensor<2x6xi32>, tensor<4x5xi32>, tensor<2x3x2xi32>, tensor<1x2xi32>
}

// -----

func.func @main() -> (tensor<2x2xf32>, tensor<3x3xf32>, tensor<2x2xf32>, tensor<3x3xf32>) {
  %x = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]> : tensor<3x3xf32>
  %u = stablehlo.constant dense<[[-1.0, -2.0], [-3.0, -4.0]]> : tensor<2x2xf32>
  %i = stablehlo.constant dense<1> : tensor<i32>
  %j = stablehlo.constant dense<2> : tensor<i32>
  %0 = stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 2] : (tensor<3x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
  %1 = stablehlo.dynamic_update_slice %x, %u, %i, %i : (tensor<3x3xf32>, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> tensor<3x3xf32>
  %rows = stablehlo.constant dense<[[2], [0]]> : tensor<2x1xi32>
  %2 = "stablehlo.gather"(%x, %rows) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 2>
  }> : (tensor<3x3xf32>, tensor<2x1xi32>) -> tensor<2x2xf32>
  %3 = "stablehlo.scatter"(%x, %rows, %2) <{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<3x3xf32>, tensor<2x1xi32>, tensor<2x2xf32>) -> tensor<3x3xf32>
  return %0, %1, %2, %3 : tensor<2x2xf32>, tensor<3x3xf32>, tensor<2x2xf32>, tensor<3x3xf32>
}

// -----

func.func @known_when_it_runs() -> (tensor<6xf32>, tensor<2x3xf32>, tensor<3xi32>, tensor<5xf32>, tensor<2x2xf32>) {
  %x = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %v = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %six = stablehlo.constant dense<6> : tensor<1xi32>
  %three = stablehlo.constant dense<3> : tensor<1xi32>
  %two_three = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
  %one = stablehlo.constant dense<1> : tensor<1xi32>
  %zero = stablehlo.constant dense<0> : tensor<1xi32>
  %0 = stablehlo.dynamic_reshape %x, %six : (tensor<2x3xf32>, tensor<1xi32>) -> tensor<6xf32>
  %1 = stablehlo.dynamic_broadcast_in_dim %v, %two_three, dims = [1] : (tensor<3xf32>, tensor<2xi32>) -> tensor<2x3xf32>
  %2 = stablehlo.dynamic_iota %three, dim = 0 : (tensor<1xi32>) -> tensor<3xi32>
  %3 = stablehlo.dynamic_pad %v, %f, %one, %one, %zero : (tensor<3xf32>, tensor<f32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<5xf32>
  %rows = stablehlo.constant dense<[[1], [0]]> : tensor<2x1xi32>
  %sizes = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %4 = "stablehlo.dynamic_gather"(%x, %rows, %sizes) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>
  }> : (tensor<2x3xf32>, tensor<2x1xi32>, tensor<2xi32>) -> tensor<2x2xf32>
  return %0, %1, %2, %3, %4 : tensor<6xf32>, tensor<2x3xf32>, tensor<3xi32>, tensor<5xf32>, tensor<2x2xf32>
}

// -----

func.func @sizes() -> tensor<i32> {
  %x = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %0 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>
  return %0 : tensor<i32>
}

// -----

// not interpreted: dynamic result types are not supported
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>> {
  %0 = "stablehlo.set_dimension_size"(%x, %n) <{dimension = 0 : i64}> : (tensor<4xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<4>>
  return %0 : tensor<?xf32, #stablehlo.bounds<4>>
}

// -----

// not interpreted: dynamic result types are not supported
func.func @main(%x: tensor<8xf32>, %start: tensor<1xi32>, %stop: tensor<1xi32>, %stride: tensor<1xi32>) -> tensor<?xf32> {
  %0 = stablehlo.real_dynamic_slice %x, %start, %stop, %stride : (tensor<8xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

// not interpreted: unsupported at the moment
func.func @main(%x: tensor<5x3xf32>, %i: tensor<2xi32>) -> (tensor<2x3xf32>, tensor<4x5x3xf32>) {
  %0 = "stablehlo.torch_index_select"(%x, %i) <{dim = 0 : i64, batch_dims = 0 : i64}> : (tensor<5x3xf32>, tensor<2xi32>) -> tensor<2x3xf32>
  %1 = "stablehlo.broadcast"(%x) <{broadcast_sizes = array<i64: 4>}> : (tensor<5x3xf32>) -> tensor<4x5x3xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<4x5x3xf32>
}
