// Each part is a module of its own, with symbols of its own; lines count from the top of the file.
// RUN: hloom-opt %s --split-input-file -p cse | filecheck %s
// RUN: not hloom-opt %s -p cse 2>&1 | filecheck %s --check-prefix=WHOLE

// WHOLE: split-input-file.mlir:17:1: error: redefinition of symbol named 'f'

// CHECK:      func.func @f
// CHECK:        stablehlo.add
// CHECK-NEXT:   stablehlo.multiply
func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  %1 = stablehlo.add %x, %x : tensor<2xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<2xf32>
  return %2 : tensor<2xf32>
}
// -----
func.func @f() {
  return
}
// CHECK:      // -----
// CHECK-NEXT: module {
// CHECK-NEXT:   func.func @f() {
// CHECK-NEXT:     return
