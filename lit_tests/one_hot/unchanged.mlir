// Accesses that one-hot leaves as they are.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p one-hot | diff %t -
// RUN: hloom-opt %s -p "one-hot{reads=select}" | diff %t -

// Two elements of each row.
func.func public @several(%x: tensor<8x16xf32>, %labels: tensor<8x2x1xi32>) -> tensor<8x2xf32> {
  %0 = "stablehlo.gather"(%x, %labels) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xf32>, tensor<8x2x1xi32>) -> tensor<8x2xf32>
  return %0 : tensor<8x2xf32>
}

// Rows of a table.
func.func public @slices(%x: tensor<16x8xf32>, %words: tensor<4x1xi32>) -> tensor<4x8xf32> {
  %0 = "stablehlo.gather"(%x, %words) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// The rows are counted from 1.
func.func public @other_rows(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>) -> tensor<8xf32> {
  %count = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %one = stablehlo.constant dense<1> : tensor<8x1xi32>
  %rows = stablehlo.add %count, %one : tensor<8x1xi32>
  %indices = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %0 = "stablehlo.gather"(%x, %indices) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// In place.
func.func public @in_memory(%cache: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %updates: tensor<8xf32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.scatter"(%cache, %labels, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// A combiner of another kind.
func.func public @products(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %updates: tensor<8xf32>) -> tensor<8x16xf32> {
  %values = stablehlo.exponential %x : tensor<8x16xf32>
  %0 = "stablehlo.scatter"(%values, %labels, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// No numbers that can be summed by their bits.
func.func public @complex(%x: tensor<8x16xcomplex<f32>>, %labels: tensor<8x1xi32>) -> tensor<8xcomplex<f32>> {
  %0 = "stablehlo.gather"(%x, %labels) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xcomplex<f32>>, tensor<8x1xi32>) -> tensor<8xcomplex<f32>>
  return %0 : tensor<8xcomplex<f32>>
}

// Work for the host.
func.func public @for_the_host(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %updates: tensor<8xf32>) -> tensor<8x16xf32> {
  %values = stablehlo.exponential %x : tensor<8x16xf32>
  %0 = "stablehlo.scatter"(%values, %labels, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) {mhlo.frontend_attributes = {_xla_compute_type = "host"}} : (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
