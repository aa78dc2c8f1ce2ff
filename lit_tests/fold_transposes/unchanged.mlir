// Transposes that stay.
// RUN: hloom-opt %s -o %t && hloom-opt %s -p fold-transposes | diff %t -

// The axes that the product keeps would be in another order.
func.func public @order(%x: tensor<2x3x4xf32>, %w: tensor<4x9xf32>) -> tensor<3x2x9xf32> {
  %0 = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [2] x [0] : (tensor<3x2x4xf32>, tensor<4x9xf32>) -> tensor<3x2x9xf32>
  return %1 : tensor<3x2x9xf32>
}

// Somebody else reads the product as it is.
func.func public @read(%x: tensor<2x4xf32>, %g: tensor<2x9xf32>) -> (tensor<9x4xf32>, tensor<4x9xf32>) {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<2x4xf32>, tensor<2x9xf32>) -> tensor<4x9xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<4x9xf32>) -> tensor<9x4xf32>
  return %1, %0 : tensor<9x4xf32>, tensor<4x9xf32>
}

// More than the two operands' axes change places.
func.func public @mixed(%x: tensor<2x4x5xf32>, %g: tensor<2x9xf32>) -> tensor<5x9x4xf32> {
  %0 = stablehlo.dot_general %x, %g, contracting_dims = [0] x [0] : (tensor<2x4x5xf32>, tensor<2x9xf32>) -> tensor<4x5x9xf32>
  %1 = stablehlo.transpose %0, dims = [1, 2, 0] : (tensor<4x5x9xf32>) -> tensor<5x9x4xf32>
  return %1 : tensor<5x9x4xf32>
}

// An attribute that says more of the product.
func.func public @described(%x: tensor<2x4xf32>, %w: tensor<9x4xf32>) -> tensor<2x9xf32> {
  %0 = stablehlo.transpose %w, dims = [1, 0] : (tensor<9x4xf32>) -> tensor<4x9xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] {mhlo.frontend_attributes = {key = "value"}} : (tensor<2x4xf32>, tensor<4x9xf32>) -> tensor<2x9xf32>
  return %1 : tensor<2x9xf32>
}
