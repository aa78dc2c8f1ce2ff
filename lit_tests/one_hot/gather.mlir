// Gathers of one element a row: with rows as batching dimensions, or as the sum over a select.
// RUN: hloom-opt %s -p one-hot -o %t && filecheck %s --input-file %t
// RUN: hloom-opt %t -p one-hot | diff %t -
// RUN: hloom-opt %s -p "one-hot{reads=select}" -o %t.sum && filecheck %s --check-prefix SUM --input-file %t.sum

// JAX wraps negative row numbers, although none is; and clamps the vectors with mode="clip".
// CHECK-LABEL: func.func public @counted
// CHECK:         "stablehlo.gather"(%arg0, %{{.*}}) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>
// CHECK-SAME:      (tensor<8x16xf32>, tensor<8x1xi32>) -> tensor<8xf32>
// SUM-LABEL:   func.func public @counted
// SUM:           %[[LAST:.*]] = stablehlo.constant dense<15> : tensor<i32>
// SUM-NEXT:      %[[LABEL:.*]] = stablehlo.clamp %{{.*}}, %{{.*}}, %[[LAST]]
// SUM:           %[[CHOSEN:.*]] = stablehlo.compare EQ
// SUM-NEXT:      %[[BITS:.*]] = stablehlo.bitcast_convert %arg0 : (tensor<8x16xf32>) -> tensor<8x16xi32>
// SUM:           %[[KEPT:.*]] = stablehlo.select %[[CHOSEN]], %[[BITS]]
// SUM-NEXT:      %[[SUM:.*]] = stablehlo.reduce(%[[KEPT]] init: %{{.*}}) applies stablehlo.add across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
// SUM-NEXT:      stablehlo.bitcast_convert %[[SUM]] : (tensor<8xi32>) -> tensor<8xf32>
func.func public @counted(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>) -> tensor<8xf32> {
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %zero = stablehlo.constant dense<0> : tensor<8xi32>
  %negative = stablehlo.compare LT, %count, %zero, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
  %eight = stablehlo.constant dense<8> : tensor<8xi32>
  %more = stablehlo.add %count, %eight : tensor<8xi32>
  %wrapped = stablehlo.select %negative, %more, %count : tensor<8xi1>, tensor<8xi32>
  %rows = stablehlo.broadcast_in_dim %wrapped, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %indices = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %low = stablehlo.constant dense<0> : tensor<8x2xi32>
  %high = stablehlo.constant dense<[[7, 15], [7, 15], [7, 15], [7, 15], [7, 15], [7, 15], [7, 15], [7, 15]]> : tensor<8x2xi32>
  %clamped = stablehlo.clamp %low, %indices, %high : tensor<8x2xi32>
  %0 = "stablehlo.gather"(%x, %clamped) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// The rows of the indices are in another order than those of the operand.
// CHECK-LABEL: func.func public @transposed
// CHECK:         %[[LABEL:.*]] = stablehlo.transpose %{{.*}}, dims = [1, 0, 2] : (tensor<3x2x1xi32>) -> tensor<2x3x1xi32>
// CHECK:         %[[FOUND:.*]] = "stablehlo.gather"(%arg0, %[[LABEL]])
// CHECK-NEXT:    %[[RESULT:.*]] = stablehlo.transpose %[[FOUND]], dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
// CHECK-NEXT:    return %[[RESULT]]
func.func public @transposed(%x: tensor<2x3x16xf32>, %labels: tensor<3x2x1xi32>) -> tensor<3x2xf32> {
  %first = stablehlo.iota dim = 1 : tensor<3x2x1xi32>
  %second = stablehlo.iota dim = 0 : tensor<3x2x1xi32>
  %indices = stablehlo.concatenate %first, %second, %labels, dim = 2 : (tensor<3x2x1xi32>, tensor<3x2x1xi32>, tensor<3x2x1xi32>) -> tensor<3x2x3xi32>
  %0 = "stablehlo.gather"(%x, %indices) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [0, 1, 2], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<2x3x16xf32>, tensor<3x2x3xi32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// Of booleans: whether there is one that is true.
// SUM-LABEL:   func.func public @booleans
// SUM-NOT:       bitcast_convert
// SUM:           stablehlo.reduce({{.*}}) applies stablehlo.or across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
func.func public @booleans(%x: tensor<8x16xi1>, %labels: tensor<8x1xi32>) -> tensor<8xi1> {
  %0 = "stablehlo.gather"(%x, %labels) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xi1>, tensor<8x1xi32>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}
