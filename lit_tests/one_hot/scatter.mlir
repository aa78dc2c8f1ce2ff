// Scatters of one element a row become selects.
// RUN: hloom-opt %s -p one-hot -o %t && filecheck %s --input-file %t
// RUN: hloom-opt %t -p one-hot | diff %t -

// Rows are batching dimensions, as take_along_axis has them.
// CHECK-LABEL: func.func public @batched
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:         %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %[[ZERO]], dims = [] : (tensor<f32>) -> tensor<8x16xf32>
// CHECK-NEXT:    %[[LABEL:.*]] = stablehlo.reshape %arg0 : (tensor<8x1x1xi32>) -> tensor<8xi32>
// CHECK-NEXT:    %[[COUNT:.*]] = stablehlo.iota dim = 0 : tensor<16xi32>
// CHECK-NEXT:    %[[POSITION:.*]] = stablehlo.broadcast_in_dim %[[COUNT]], dims = [1] : (tensor<16xi32>) -> tensor<8x16xi32>
// CHECK-NEXT:    %[[LABELS:.*]] = stablehlo.broadcast_in_dim %[[LABEL]], dims = [0] : (tensor<8xi32>) -> tensor<8x16xi32>
// CHECK-NEXT:    %[[CHOSEN:.*]] = stablehlo.compare EQ, %[[POSITION]], %[[LABELS]]
// CHECK-NEXT:    %[[UPDATE:.*]] = stablehlo.reshape %arg1 : (tensor<8x1xf32>) -> tensor<8xf32>
// CHECK-NEXT:    %[[START:.*]] = stablehlo.broadcast_in_dim %[[ZERO]], dims = [] : (tensor<f32>) -> tensor<8xf32>
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[START]], %[[UPDATE]] : tensor<8xf32>
// CHECK-NEXT:    %[[SUMS:.*]] = stablehlo.broadcast_in_dim %[[SUM]], dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:    %[[RESULT:.*]] = stablehlo.select %[[CHOSEN]], %[[SUMS]], %[[ZEROS]]
// CHECK-NEXT:    return %[[RESULT]]
func.func public @batched(%labels: tensor<8x1x1xi32>, %updates: tensor<8x1xf32>) -> tensor<8x16xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
  %0 = "stablehlo.scatter"(%zeros, %labels, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x1x1xi32>, tensor<8x1xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// Rows are numbers in the indices, which nothing needs any more. What is added to is no constant.
// CHECK-LABEL: func.func public @counted
// CHECK-SAME:      (%arg0: tensor<8x16xf32>, %arg1: tensor<8x1xi32>, %arg2: tensor<8xf32>)
// CHECK-NEXT:    %[[VALUES:.*]] = stablehlo.exponential %arg0
// CHECK-NEXT:    %[[LABEL:.*]] = stablehlo.reshape %arg1 : (tensor<8x1xi32>) -> tensor<8xi32>
// CHECK-NEXT:    %[[COUNT:.*]] = stablehlo.iota dim = 0 : tensor<16xi32>
// CHECK-NEXT:    %[[POSITION:.*]] = stablehlo.broadcast_in_dim %[[COUNT]], dims = [1]
// CHECK-NEXT:    %[[LABELS:.*]] = stablehlo.broadcast_in_dim %[[LABEL]], dims = [0]
// CHECK-NEXT:    %[[CHOSEN:.*]] = stablehlo.compare EQ, %[[POSITION]], %[[LABELS]]
// CHECK-NEXT:    %[[UPDATE:.*]] = stablehlo.broadcast_in_dim %arg2, dims = [0]
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[VALUES]], %[[UPDATE]]
// CHECK-NEXT:    %[[RESULT:.*]] = stablehlo.select %[[CHOSEN]], %[[SUM]], %[[VALUES]]
// CHECK-NEXT:    return %[[RESULT]]
func.func public @counted(%x: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %updates: tensor<8xf32>) -> tensor<8x16xf32> {
  %values = stablehlo.exponential %x : tensor<8x16xf32>
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %indices = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %0 = "stablehlo.scatter"(%values, %indices, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// Updates replace what is there. Labels of 8 bits count no further than 127: they are compared in
// 32. A window of one element, as vmap has it, is an axis of the updates.
// CHECK-LABEL: func.func public @written
// CHECK:         %[[LABEL:.*]] = stablehlo.reshape %arg1 : (tensor<8x1xi8>) -> tensor<8xi8>
// CHECK-NEXT:    %[[WIDE:.*]] = stablehlo.convert %[[LABEL]] : (tensor<8xi8>) -> tensor<8xi32>
// CHECK:         %[[CHOSEN:.*]] = stablehlo.compare EQ
// CHECK:         %[[UPDATE:.*]] = stablehlo.reshape %arg2 : (tensor<8x1xf32>) -> tensor<8xf32>
// CHECK-NEXT:    %[[UPDATES:.*]] = stablehlo.broadcast_in_dim %[[UPDATE]], dims = [0]
// CHECK-NEXT:    stablehlo.select %[[CHOSEN]], %[[UPDATES]], %{{.*}} : tensor<8x300xi1>, tensor<8x300xf32>
func.func public @written(%x: tensor<8x300xf32>, %labels: tensor<8x1xi8>, %updates: tensor<8x1xf32>) -> tensor<8x300xf32> {
  %values = stablehlo.exponential %x : tensor<8x300xf32>
  %0 = "stablehlo.scatter"(%values, %labels, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<8x300xf32>, tensor<8x1xi8>, tensor<8x1xf32>) -> tensor<8x300xf32>
  return %0 : tensor<8x300xf32>
}

// Written in place, as a cache is; but its rows become batching dimensions.
// CHECK-LABEL: func.func public @in_memory
// CHECK-NOT:     stablehlo.select
// CHECK:         "stablehlo.scatter"(%arg0, %arg1, %arg2)
// CHECK-SAME:      inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 1
func.func public @in_memory(%cache: tensor<8x16xf32>, %labels: tensor<8x1xi32>, %updates: tensor<8xf32>) -> tensor<8x16xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<8x1xi32>
  %indices = stablehlo.concatenate %rows, %labels, dim = 1 : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %0 = "stablehlo.scatter"(%cache, %indices, %updates) <{
    scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>
  }> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
