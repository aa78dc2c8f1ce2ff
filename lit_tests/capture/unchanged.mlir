// Where there is nothing to capture.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p capture --target h100_sxm | diff %t -
// Nor is there elsewhere than on CUDA.
// RUN: hloom-opt %s -p "capture{min_ops=1}" | diff %t -

// Too little work for a graph.
func.func public @little(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  %1 = stablehlo.cosine %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}

// Enough of it, but the host is in between each time.
func.func public @cut(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.sine %x : tensor<8xf32>
  %1 = stablehlo.cosine %0 : tensor<8xf32>
  %2 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%1)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  %3 = stablehlo.sine %2 : tensor<8xf32>
  %4 = stablehlo.cosine %3 : tensor<8xf32>
  %5 = stablehlo.custom_call @xla_ffi_python_gpu_callback(%4)
      {api_version = 4 : i32, backend_config = {index = 0 : ui64}}
      : (tensor<8xf32>) -> tensor<8xf32>
  %6 = stablehlo.sine %5 : tensor<8xf32>
  return %6 : tensor<8xf32>
}

// Work of libraries that XLA does not capture, and nothing else.
func.func public @libraries(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.cholesky %x, lower = true : tensor<8x8xf32>
  %1 = stablehlo.cholesky %0, lower = true : tensor<8x8xf32>
  %2 = stablehlo.cholesky %1, lower = true : tensor<8x8xf32>
  %3 = stablehlo.cholesky %2, lower = true : tensor<8x8xf32>
  %4 = stablehlo.cholesky %3, lower = true : tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}
