// What only looks like attention: nothing changes but what inline and cse make of it.
// RUN: hloom-opt %s -p inline,cse -o %t && hloom-opt %s -p "attention{kernel=emulated min_keys=1}" | diff %t -
// RUN: hloom-opt %s -p attention | diff %t -

// The scores are capped.
func.func public @capped(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<5.000000e+00> : tensor<f32>
  %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %4 = stablehlo.divide %2, %3 : tensor<2x2x8x8xf32>
  %5 = stablehlo.tanh %4 : tensor<2x2x8x8xf32>
  %6 = stablehlo.multiply %3, %5 : tensor<2x2x8x8xf32>
  %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %8 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %9 = stablehlo.maximum %8, %7 : tensor<2x2x8xf32>
  %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %12 = stablehlo.subtract %6, %11 : tensor<2x2x8x8xf32>
  %13 = stablehlo.exponential %12 : tensor<2x2x8x8xf32>
  %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %14 = stablehlo.reduce(%13 init: %cst_2) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %17 = stablehlo.divide %13, %16 : tensor<2x2x8x8xf32>
  %18 = stablehlo.dot_general %arg2, %17, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %19 = stablehlo.transpose %18, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %19 : tensor<2x8x2x4xf32>
}

// Weights of a sigmoid.
func.func public @sigmoid(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %3 = stablehlo.negate %2 : tensor<2x2x8x8xf32>
  %4 = stablehlo.exponential %3 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
  %5 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %6 = stablehlo.add %5, %4 : tensor<2x2x8x8xf32>
  %7 = stablehlo.divide %5, %6 : tensor<2x2x8x8xf32>
  %8 = stablehlo.dot_general %arg2, %7, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %9 = stablehlo.transpose %8, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %9 : tensor<2x8x2x4xf32>
}

// The sum has one term more.
func.func public @one_more(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %3 = stablehlo.exponential %2 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
  %6 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x2x8x1xf32>
  %7 = stablehlo.add %6, %5 : tensor<2x2x8x1xf32>
  %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %9 = stablehlo.divide %3, %8 : tensor<2x2x8x8xf32>
  %10 = stablehlo.dot_general %arg2, %9, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %11 = stablehlo.transpose %10, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %11 : tensor<2x8x2x4xf32>
}

// The weights are a result.
func.func public @returned(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>) -> (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %3 = stablehlo.maximum %2, %1 : tensor<2x2x8xf32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %6 = stablehlo.subtract %0, %5 : tensor<2x2x8x8xf32>
  %7 = stablehlo.exponential %6 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %8 = stablehlo.reduce(%7 init: %cst_0) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %11 = stablehlo.divide %7, %10 : tensor<2x2x8x8xf32>
  %12 = stablehlo.dot_general %arg2, %11, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %13 = stablehlo.transpose %12, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %13, %11 : tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>
}

// The scale is another in each row.
func.func public @temperature(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>, %arg2: tensor<2x8x2x4xf32>, %arg3: tensor<8xf32>) -> (tensor<2x8x2x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8x8xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2x2x8x8xf32>
  %3 = stablehlo.broadcast_in_dim %arg3, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [2, 3] : (tensor<8x1xf32>) -> tensor<1x1x8x1xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2, 3] : (tensor<1x1x8x1xf32>) -> tensor<2x2x8x8xf32>
  %6 = stablehlo.multiply %2, %5 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %7 = stablehlo.reduce(%6 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %9 = stablehlo.maximum %8, %7 : tensor<2x2x8xf32>
  %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %12 = stablehlo.subtract %6, %11 : tensor<2x2x8x8xf32>
  %13 = stablehlo.exponential %12 : tensor<2x2x8x8xf32>
  %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %14 = stablehlo.reduce(%13 init: %cst_1) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %17 = stablehlo.divide %13, %16 : tensor<2x2x8x8xf32>
  %18 = stablehlo.dot_general %arg2, %17, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3] : (tensor<2x8x2x4xf32>, tensor<2x2x8x8xf32>) -> tensor<2x2x4x8xf32>
  %19 = stablehlo.transpose %18, dims = [0, 3, 1, 2] : (tensor<2x2x4x8xf32>) -> tensor<2x8x2x4xf32>
  return %19 : tensor<2x8x2x4xf32>
}

// A softmax, and no product behind it.
func.func public @no_product(%arg0: tensor<2x8x2x4xf32>, %arg1: tensor<2x8x2x4xf32>) -> (tensor<2x2x8x8xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x2x4xf32>, tensor<2x8x2x4xf32>) -> tensor<2x2x8x8xf32>
  %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x8xf32>
  %3 = stablehlo.maximum %2, %1 : tensor<2x2x8xf32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %6 = stablehlo.subtract %0, %5 : tensor<2x2x8x8xf32>
  %7 = stablehlo.exponential %6 : tensor<2x2x8x8xf32>
  %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
  %8 = stablehlo.reduce(%7 init: %cst_0) applies stablehlo.add across dimensions = [3] : (tensor<2x2x8x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
  %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2] : (tensor<2x2x8xf32>) -> tensor<2x2x8x1xf32>
  %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2, 3] : (tensor<2x2x8x1xf32>) -> tensor<2x2x8x8xf32>
  %11 = stablehlo.divide %7, %10 : tensor<2x2x8x8xf32>
  return %11 : tensor<2x2x8x8xf32>
}
